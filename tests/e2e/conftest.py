"""Fixtures of the product's e2e tests: operator from the chart, engines on a real node."""

from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from devcluster.handle import ClusterHandle
from devcluster.locations import Locations
from support.checkpoint import fetch_checkpoint
from support.faces import FACES, Face
from support.installation import (
    Installation,
    find_installation,
    installed,
    model_source,
    tiny_model_args,
)
from support.space import Engines, Space, temporary_space
from support.tiny_llama import write_tiny_llama

LONGEST_SEQUENCE = 16384
SAMPLE = Path(__file__).resolve().parents[2] / "manifests/samples/smollm2.yaml"
SMALL = {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}}
QUICK_RESTART = {"initialSeconds": 0.2, "maxSeconds": 1}
LAUNCHER = (
    # Outlives its engine and then claims that all went well, as some launchers do.
    'python -m enginecore_torch "$@" & wait; sleep 4; exit 0'
)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show with a failure what the test's namespaces look like."""
    report = yield
    arguments = getattr(item, "funcargs", {})
    installation = arguments.get("installation")
    if report.failed and isinstance(installation, Installation):
        found = [value.space for value in arguments.values() if isinstance(value, Engines)]
        found += [value for value in arguments.values() if isinstance(value, Space)]
        for name, space in {space.name: space for space in found}.items():
            report.sections.append((f"namespace {name}", space.describe()))
        report.sections.append(("operator", installation.log()))
    return report


@pytest.fixture(scope="session")
def installation(
    node_cluster: ClusterHandle, devcluster_locations: Locations
) -> Iterator[Installation]:
    """The operator: one that a reused cluster has already, or else one of these tests."""
    found = find_installation(node_cluster)
    if found is not None:
        yield found
        return
    with installed(node_cluster, devcluster_locations) as own:
        yield own


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """spec.model of a random model of a few kilobytes, on the node's disk."""
    directory = tmp_path_factory.mktemp("models") / "tiny-llama"
    write_tiny_llama(directory, LONGEST_SEQUENCE)
    for file in directory.iterdir():
        # Pods do not run as the user who writes here.
        file.chmod(0o644)
    return model_source(directory)


@pytest.fixture(scope="session")
def tiny_spec(tiny_model: dict[str, Any]) -> dict[str, Any]:
    """An EngineCluster's spec for that model and the torch engine."""
    return {
        "model": tiny_model,
        "runtime": {
            "type": "torch",
            "args": tiny_model_args(),
            "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
        },
        "resources": SMALL,
        "restart": QUICK_RESTART,
    }


@pytest.fixture(scope="session")
def launched_spec(installation: Installation, tiny_spec: dict[str, Any]) -> dict[str, Any]:
    """The same behind a launcher: three processes in each pod."""
    path = f"/models/{tiny_spec['model']['name']}"
    dial = ["--data-parallel-address", "127.0.0.1"]
    port = ["--data-parallel-rpc-port", "$(ENGINECORE_HANDSHAKE_PORT)"]
    runtime = tiny_spec["runtime"] | {
        "type": "custom",
        "image": installation.engine_image,
        "command": ["sh", "-c", LAUNCHER, "launcher", path, *dial, *port],
    }
    return tiny_spec | {"runtime": runtime}


@pytest.fixture(scope="session")
def lab(installation: Installation, launched_spec: dict[str, Any]) -> Iterator[Engines]:
    """Two engines for faults, in a namespace with Services whose names would hurt (C6)."""
    with temporary_space(installation.cluster) as space:
        engines = Engines(space, "vllm")
        ports = [{"port": 80}]
        space.kubectl.apply(
            *(
                {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
                 "spec": {"ports": ports}}
                for name in ("vllm", "vllm-0")
            )
        )  # fmt: skip
        engines.apply(replicas=2, **launched_spec)
        engines.wait_ready(2)
        yield engines


@pytest.fixture(scope="session")
def smollm(installation: Installation) -> Iterator[Engines]:
    """The demo's engines: the sample as it is shipped, on this machine's checkpoint."""
    sample: dict[str, Any] = yaml.safe_load(SAMPLE.read_text())
    sample["spec"]["model"]["source"]["hostPath"] = str(fetch_checkpoint().parent)
    with temporary_space(installation.cluster) as space:
        space.kubectl.apply(sample)
        engines = Engines(space, sample["metadata"]["name"])
        engines.wait_ready(sample["spec"]["replicas"], 240)
        condition = ("Available", "True")
        found = engines.status()["conditions"]
        assert condition in {(c["type"], c["status"]) for c in found}
        yield engines


@pytest.fixture
def space(installation: Installation) -> Iterator[Space]:
    """A namespace of this test's own, gone at its end."""
    with temporary_space(installation.cluster) as found:
        yield found


@pytest.fixture
def make_source() -> Iterator[Callable[[Engines], Any]]:
    """Return a function that follows the addresses in an EngineCluster's status."""
    clients: list[Any] = []

    def make(engines: Engines) -> Any:
        clients.append(engines.space.api_client())
        return engines.source(clients[-1])

    yield make
    for client in clients:
        client.rest_client.pool_manager.clear()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(32) as pool:
        yield pool


@pytest.fixture
def make_face(
    make_source: Callable[[Engines], Any], threads: ThreadPoolExecutor, tmp_path: Path
) -> Iterator[Callable[..., Face]]:
    """Return a function that connects a client of a kind to an EngineCluster, or to addresses.

    To an EngineCluster it goes with the key of its clients, unless it is given another. Clients are
    closed before threads are waited for: whatever still waits for an answer fails.
    """
    faces: list[Face] = []

    def make(kind: str, addresses: Any, **options: Any) -> Face:
        source = addresses
        if isinstance(addresses, Engines):
            source = make_source(addresses)
            options = addresses.key_options(tmp_path) | options
        faces.append(FACES[kind](source, **options))
        return faces[-1]

    yield make
    for face in faces:
        face.close()


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()
