"""Pods with the stub engine, and clients that show single frames."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from support.pod import Pod, stub_config
from support.raw_client import RawClient

MakePod = Callable[..., Pod]
Connect = Callable[..., RawClient]


@pytest.fixture
def make_pod() -> Iterator[MakePod]:
    """Return a function that starts a pod: options of the stub engine, settings of the server.

    `ready=False` does not wait for the engine.
    """
    with ExitStack() as stack:

        def make(*options: str, ready: bool = True, **fields: Any) -> Pod:
            pod = stack.enter_context(Pod(stub_config(*options, **fields)))
            return pod.wait_ready() if ready else pod

        yield make


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Return a function that opens a client of a pod."""
    with ExitStack() as stack:
        yield lambda pod, **options: stack.enter_context(
            RawClient(pod.input_port, pod.output_port, **options)
        )
