"""Pods for the client's contract tests: real engine servers with the stub engine."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from support.pod import Pod, stub_config
from support.protocol_peer import ProtocolPeer


@pytest.fixture(scope="module")
def pod() -> Iterator[Pod]:
    """A pod whose engine gives a token every 5 ms; for tests that leave it as it is."""
    with Pod(stub_config("--tokens", "2000", "--token-seconds", "0.005")) as running:
        yield running.wait_ready()


@pytest.fixture
def start_pod() -> Iterator[Callable[..., Pod]]:
    """Start pods of a test's own; they end with it."""
    with ExitStack() as stack:

        def start(*options: str, **fields: object) -> Pod:
            return stack.enter_context(Pod(stub_config(*options, **fields)))

        yield start


@pytest.fixture
def peer() -> Iterator[ProtocolPeer]:
    """A scripted peer."""
    with ProtocolPeer() as running:
        yield running
