"""The whole path on one host: real clients, real engine servers, stub and torch engines."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from enginecore_wire.contract import ServerConfig
from support.faces import FACES, Face
from support.pod import Pod, stub_config, torch_config
from support.tiny_llama import write_tiny_llama


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny-llama")


def tiny_torch_config(model: Path, *options: str, **fields: Any) -> ServerConfig:
    """Return settings of a torch engine that starts fast and takes little."""
    small = ("--kv-cache-bytes", str(8 << 20), "--threads", "1", "--max-num-seqs", "64")
    return torch_config(model, *small, *options, **fields)


@pytest.fixture
def make_pod(tiny_llama: Path) -> Iterator[Callable[..., Pod]]:
    """Return a function that starts a pod of this test, with the stub engine unless told."""
    pods: list[Pod] = []

    def make(*options: str, torch: bool = False, **fields: Any) -> Pod:
        config = (
            tiny_torch_config(tiny_llama, *options, **fields)
            if torch
            else stub_config(*options, **fields)
        )
        pods.append(Pod(config))
        return pods[-1].wait_ready()

    yield make
    for started in pods:
        started.close()


@pytest.fixture(params=list(FACES))
def make_face(request: pytest.FixtureRequest) -> Iterator[Callable[..., Face]]:
    """Return a function that connects a client; once for each kind of client."""
    faces: list[Face] = []

    def make(addresses: Any, **options: Any) -> Face:
        faces.append(FACES[request.param](addresses, **options))
        return faces[-1]

    yield make
    for face in faces:
        face.close()


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()
