"""The end of a drain, for clients that read and for one that does not."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from enginecore_server.desk import ClientDesk
from enginecore_server.drain import Drain
from enginecore_server.model_facts import ModelInputs
from enginecore_server.sessions import Session, Side
from enginecore_server.state import ServerState
from enginecore_wire.contract import ModelConfig, ServerConfig
from enginecore_wire.control import Phase
from enginecore_wire.outputs import EngineCoreOutputs, FinishReason
from enginecore_wire.requests import RequestType

WHO, NONCE = b"a" * 16, b"n" * 8


class Link:
    """Takes what goes to the engine."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send(self, kind: bytes, _body: bytes, _aux: Sequence[bytes] = ()) -> bool:
        self.sent.append(kind)
        return True


class Sockets:
    """Takes what goes to clients; if `full`, the first message is one too many."""

    def __init__(self, desk: ClientDesk, *, full: bool) -> None:
        self.desk = desk
        self.full = full
        self.outputs: list[EngineCoreOutputs] = []

    def send(self, session: Session, frames: list[Any], engine_message: bool) -> None:
        if engine_message:
            self.outputs.append(msgspec.msgpack.decode(frames[0], type=EngineCoreOutputs))
            if self.full:
                self.desk.client_too_slow(session)

    def cut(self, session: Session) -> None:
        assert session.connected


@pytest.mark.parametrize("full", [False, True])
def test_what_is_unfinished_at_the_deadline_ends_with_abort(full: bool) -> None:
    config = ServerConfig(name="n", model=ModelConfig("/m"), drain_deadline_seconds=5.0)
    state, link = ServerState(config, ModelInputs(100), 7), Link()
    for phase in (Phase.HANDSHAKING, Phase.LOADING, Phase.READY):
        assert state.phases.enter(phase)
    desk = ClientDesk(state, link)  # type: ignore[arg-type]
    sockets = Sockets(desk, full=full)
    desk.open(sockets)  # type: ignore[arg-type]
    for fd, side in enumerate(Side):
        state.book.hello(side, WHO, NONCE, "test", fd, 1)
    session = state.book.find(WHO)
    assert session is not None
    state.book.add(session, "r", 3, 0.0)
    drain = Drain(state, desk)
    assert drain.begin("the test", 10.0)
    drain.check(14.9)
    assert not drain.done
    drain.check(15.0)
    assert drain.done
    (message,) = sockets.outputs
    ended = [(output.request_id, output.finish_reason) for output in message.outputs]
    assert ended == [("r", FinishReason.ABORT)]
    assert link.sent[0] == RequestType.ABORT
    assert (state.book.find(WHO) is None) == full
