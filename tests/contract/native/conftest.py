"""Addresses for a client that binds, and engines that dial in; they end with their test."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from enginecore_client import ClientAddresses
from support.eventually import eventually
from support.native_engines import Handshakes, directories, stub_engine
from support.process import Process

StartEngine = Callable[..., Process]


@pytest.fixture
def bound() -> Iterator[dict[str, str]]:
    """Addresses to bind: two paths in a directory of their own, short enough for a socket."""
    with TemporaryDirectory(prefix="native-") as directory:
        yield {
            "input_address": f"ipc://{Path(directory) / 'input'}",
            "output_address": f"ipc://{Path(directory) / 'output'}",
            "mode": "bind",
        }


@pytest.fixture
def handshakes(bound: dict[str, str]) -> Iterator[Handshakes]:
    """Tells engines of `bound`."""
    with Handshakes(ClientAddresses.from_dict(bound)) as running:
        yield running


@pytest.fixture
def start_engine(handshakes: Handshakes) -> Iterator[StartEngine]:
    """Start stub engines that dial `bound`: rank, then the stub's options."""
    with ExitStack() as stack:

        def start(rank: int = 0, *options: str) -> Process:
            return stack.enter_context(stub_engine(handshakes.port, rank, *options))

        yield start


@pytest.fixture(autouse=True)
def no_directory_left() -> Iterator[None]:
    """Fail a test that leaves a directory of sockets behind."""
    yield
    eventually(lambda: directories(os.getpid()) == [], "the end of the sockets' directory")
