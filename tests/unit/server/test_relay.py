"""What a burst of engine messages leads to, and in which order. No sockets."""

import time
from typing import Any, cast

import msgspec
import pytest
import zmq

from enginecore_server.engine_link import EngineLink
from enginecore_server.exposed import ExposedSockets
from enginecore_server.model_facts import ModelInputs
from enginecore_server.relay import OutputRelay
from enginecore_server.sessions import Session, SessionBook, Side
from enginecore_server.state import ServerState
from enginecore_wire.contract import ModelConfig, ServerConfig
from enginecore_wire.outputs import (
    ENGINE_CORE_DEAD,
    EngineCoreOutput,
    EngineCoreOutputs,
    FinishReason,
    SchedulerStats,
)

LARGE = 70_000


class Sent:
    """Takes the place of the exposed sockets; gives a client up after so many messages."""

    def __init__(self, book: SessionBook, happened: list[Any], patience: int) -> None:
        self._book = book
        self._happened = happened
        self._patience = patience

    def relay(self, session: Session, body: bytes | zmq.Frame, rest: list[zmq.Frame]) -> None:
        self._happened.append((session.name, bytes(body), [bytes(frame) for frame in rest]))
        if len(self._happened) == self._patience:
            self._book.end(session)


class Pod:
    """A relay whose sendings, and whose word that the engine is dead, are written down."""

    def __init__(self, patience: int = 100) -> None:
        self.state = ServerState(
            ServerConfig(name="n", model=ModelConfig("/m")), ModelInputs(100), 7
        )
        book = self.state.book
        for fd, side in enumerate(Side):
            book.hello(side, b"client-a", b"nonce", "a", fd, 1)
        session = book.find(b"client-a")
        assert session is not None
        for request_id in ("x", "y"):
            book.add(session, request_id, 3, 0.0)
        self.happened: list[Any] = []
        self.relay = OutputRelay(
            self.state,
            cast("EngineLink", None),
            cast("ExposedSockets", Sent(book, self.happened, patience)),
            cast("Any", None),
            lambda: self.happened.append("dead"),
        )

    def burst(self, *messages: list[bytes]) -> None:
        firsts = [zmq.Frame(frames[0], copy=True) for frames in messages]
        rests = {
            index: [zmq.Frame(frame, copy=True) for frame in frames[1:]]
            for index, frames in enumerate(messages)
            if len(frames) > 1
        }
        self.relay.output_messages(firsts, rests, time.monotonic())


def message(*ids: str, finish: FinishReason | None = None, pad: int = 0) -> bytes:
    padding = {"pad": "x" * pad} if pad else None
    outputs = [EngineCoreOutput(i, [5], finish_reason=finish, trace_headers=padding) for i in ids]
    return msgspec.msgpack.encode(EngineCoreOutputs(outputs=outputs))


OF_X, OF_Y, OF_BOTH, LAST = (message("x"), message("y"), message("x", "y"),
                             message("x", finish=FinishReason.STOP))  # fmt: skip
UNKNOWN = message("gone")
BIG = message("x", pad=LARGE)


@pytest.mark.parametrize(
    ("burst", "happened"),
    [
        ([[OF_X], [OF_Y]], [("a", OF_X, []), ("a", OF_Y, [])]),
        ([[OF_BOTH]], [("a", OF_BOTH, [])]),
        ([[OF_X], [OF_Y, b"aux-1", b""], [OF_X]],
         [("a", OF_X, []), ("a", OF_Y, [b"aux-1", b""]), ("a", OF_X, [])]),
        ([[BIG], [OF_X]], [("a", BIG, []), ("a", OF_X, [])]),
        ([[UNKNOWN], [OF_X]], [("a", OF_X, [])]),
        ([[b"\xc1"], [OF_X]], [("a", OF_X, [])]),
        ([[LAST]], [("a", LAST, [])]),
        ([[OF_X], [ENGINE_CORE_DEAD]], [("a", OF_X, []), "dead"]),
        ([[ENGINE_CORE_DEAD], [OF_X]], [("a", OF_X, []), "dead"]),
        ([], []),
    ],
    ids=["two", "one for two", "aux frames", "large", "unknown id", "no message", "last",
         "death behind an output", "death before an output", "nothing"],
)  # fmt: skip
def test_a_burst(burst: list[list[bytes]], happened: list[Any]) -> None:
    pod = Pod()
    pod.burst(*burst)
    assert pod.happened == happened


def test_what_is_counted() -> None:
    pod = Pod()
    pod.burst([OF_BOTH], [LAST], [UNKNOWN], [b"\xc1"], [ENGINE_CORE_DEAD])
    tally = pod.state.tally
    assert tally.outputs_relayed == 2
    assert tally.outputs_dropped == 1
    assert tally.unreadable_outputs == 1
    assert tally.generation_tokens == 3
    assert tally.prompt_tokens == 6
    assert tally.finished["stop"] == 1
    assert list(pod.state.book.requests) == ["y"]


def test_a_client_given_up_amid_a_burst_gets_no_more_of_it() -> None:
    pod = Pod(patience=2)
    pod.burst([OF_X], [OF_Y], [OF_X], [OF_Y])
    assert pod.happened == [("a", OF_X, []), ("a", OF_Y, [])]
    assert (pod.state.tally.outputs_relayed, pod.state.tally.outputs_dropped) == (2, 2)


@pytest.mark.parametrize(
    ("body", "heard"),
    [
        (OF_X, True),
        (UNKNOWN, True),
        (msgspec.msgpack.encode(EngineCoreOutputs(scheduler_stats=SchedulerStats(1))), True),
        (msgspec.msgpack.encode(EngineCoreOutputs()), False),
        (b"\xc1", False),
    ],
    ids=["output", "output for nobody", "stats", "empty", "no message"],
)
def test_what_shows_that_the_engine_computes(body: bytes, heard: bool) -> None:
    pod = Pod()
    pod.relay.heard_at = 0.0
    pod.burst([body])
    assert (pod.relay.heard_at > 0.0) is heard


def test_a_burst_is_timed_as_a_whole() -> None:
    pod = Pod()
    firsts = [zmq.Frame(body) for body in (OF_X, OF_Y, UNKNOWN)]
    pod.relay.output_messages(firsts, {}, time.monotonic() - 0.3)
    latency = pod.state.tally.relay
    assert sum(latency.counts) == 2, "what went to nobody was not relayed"
    assert latency.total == pytest.approx(0.6, abs=0.1)
    pod.burst([UNKNOWN])
    assert sum(latency.counts) == 2
