"""Addresses at which something else is, or the other half of an engine."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from enginecore_client import StartupTimeoutError, SyncMPClient
from support.eventually import eventually
from support.pod import client_addresses
from support.protocol_peer import ProtocolPeer

STRANGER = "Connecting, something listens there that is no engine server"


@contextmanager
def http_server() -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *arguments: Any) -> None:
            """Stay quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@contextmanager
def silent_server() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@contextmanager
def nobody() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    yield port


@pytest.mark.parametrize(
    ("listener", "words"),
    [
        (http_server, STRANGER),
        (silent_server, STRANGER),
        (nobody, "Connecting, nobody answers there"),
    ],
)
def test_what_listens_is_told(
    listener: Callable[[], AbstractContextManager[int]], words: str
) -> None:
    with listener() as port:
        address = f"tcp://127.0.0.1:{port}"
        addresses = {"input_address": address, "output_address": address}
        with pytest.raises(StartupTimeoutError, match=f"rank 0 at {address}: {words}"):
            SyncMPClient(addresses, ready_timeout=1.5)


def test_swapped_addresses_are_suspected(start_pod) -> None:
    pod = start_pod().wait_ready()
    swapped = {"input_address": pod.output_address, "output_address": pod.input_address}
    with pytest.raises(StartupTimeoutError, match="are input_address and output_address swapped"):
        SyncMPClient(swapped, ready_timeout=1.5)


def test_who_listened_and_is_gone_is_not_suspected(peer: ProtocolPeer) -> None:
    with SyncMPClient(peer.addresses) as client:
        peer.close()
        core, clock = client._driver.core, client._driver.clock
        eventually(lambda: "nobody answers there" in core.standing(clock()), "it was tried again")


def test_two_engines_of_one_rank_are_told(start_pod, caplog: pytest.LogCaptureFixture) -> None:
    """The first keeps the rank; both serve."""
    pods = [start_pod().wait_ready() for _ in range(2)]
    with SyncMPClient(client_addresses(pods)) as client:
        for rank in (0, 1):
            assert client.call_utility("is_sleeping", engine=rank) is False
    (told,) = [record.message for record in caplog.records if "rank" in record.message]
    assert "says that it is rank 0, which another one is: it is rank 1 here" in told
