"""Pods whose engine follows a script, and clients that show single frames."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from enginecore_wire.contract import RuntimeConfig
from support.pod import Pod, stub_config
from support.raw_client import RawClient

ENGINE = Path(__file__).with_name("scripted_engine.py")


@pytest.fixture
def scripted_pod() -> Iterator[Callable[[str], Pod]]:
    """Return a function that starts a pod whose engine acts as told; it does not wait."""
    with ExitStack() as stack:

        def make(act: str) -> Pod:
            command = [sys.executable, str(ENGINE), "$(ENGINECORE_HANDSHAKE_PORT)", act]
            runtime = RuntimeConfig(type="custom", command=command)
            config = msgspec.structs.replace(stub_config(), runtime=runtime)
            return stack.enter_context(Pod(config))

        yield make


@pytest.fixture
def connect() -> Iterator[Callable[..., RawClient]]:
    """Return a function that opens a client of a pod."""
    with ExitStack() as stack:
        yield lambda pod, **options: stack.enter_context(
            RawClient(pod.input_port, pod.output_port, **options)
        )
