"""Address sources of the application's own, which may break like everything else."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable

import pytest

from enginecore_client import (
    AddressError,
    AsyncMPClient,
    ClientAddresses,
    ClientClosedError,
    RequestTimeoutError,
    SyncMPClient,
)
from support.eventually import eventually
from support.faces import params
from support.protocol_peer import ProtocolPeer

PROMPT = [7, 11, 13]


class OwnSource:
    """A source that gives what a test says.

    Args:
        polls: what `poll` does, one after the other; the last one from then on.
    """

    def __init__(self, *polls: Callable[[], object]) -> None:
        self.polls = list(polls)
        self.starts: Callable[[], object] = lambda: None
        self.closed = 0

    def start(self, wake: Callable[[], None]) -> None:
        self.starts()

    def poll(self, now: float) -> ClientAddresses | None:
        poll = self.polls.pop(0) if len(self.polls) > 1 else self.polls[0]
        return poll()  # type: ignore[return-value]

    def close(self) -> None:
        self.closed += 1

    def describe(self) -> str:
        return "my own"


def broken() -> None:
    raise ConnectionError("no registry")


def test_a_source_that_breaks_later_changes_nothing(
    peer: ProtocolPeer, caplog: pytest.LogCaptureFixture
) -> None:
    source = OwnSource(lambda: ClientAddresses.from_dict(peer.addresses), broken)
    with caplog.at_level(logging.WARNING), SyncMPClient(source) as client:
        assert [t for o in client.generate(PROMPT, params(3)) for t in o.new_token_ids] == PROMPT
        peer.streaming = False
        started = time.monotonic()
        with pytest.raises(RequestTimeoutError):
            list(client.generate(PROMPT, params(3), deadline=0.3))
        assert time.monotonic() - started < 5
        eventually(lambda: caplog.messages != [], "the warning")
    assert caplog.messages == ["no new addresses from my own: ConnectionError('no registry')"]
    assert source.closed == 1


def test_what_is_no_address_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    source = OwnSource(lambda: {"input_address": "tcp://127.0.0.1:1"})
    monkeypatch.setattr(threading, "excepthook", lambda _: None)  # the reader thread says so too
    with pytest.raises(ClientClosedError, match="my own: poll gave dict, allowed: ClientAddresses"):
        SyncMPClient(source)
    with pytest.raises(AddressError, match="my own: poll gave dict"):
        asyncio.run(AsyncMPClient(source).connect())


@pytest.mark.parametrize("where", ["start", "poll"])
def test_a_source_that_never_works_closes_the_client(where: str) -> None:
    source = OwnSource(broken if where == "poll" else lambda: None)
    if where == "start":
        source.starts = broken
    client = AsyncMPClient(source, ready_timeout=30)
    with pytest.raises(ConnectionError):
        asyncio.run(client.connect())
    with pytest.raises(ClientClosedError):
        asyncio.run(client.connect())
    assert source.closed == 1
