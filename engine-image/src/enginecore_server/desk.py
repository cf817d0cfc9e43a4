"""Client messages: what each does to the books, the engine and the client."""

import logging
import time
from collections.abc import Callable
from typing import Final

import msgspec
import zmq

from enginecore_server import replies
from enginecore_server.admission import (
    Add,
    call_id_of,
    closed,
    incomplete,
    request_id_of,
    unknown_type,
)
from enginecore_server.engine_link import EngineLink
from enginecore_server.entrance import Entrance
from enginecore_server.exposed import ExposedSockets, Payload, payload
from enginecore_server.logs import note
from enginecore_server.monitors import Refusal
from enginecore_server.sessions import Session, Side
from enginecore_server.state import ServerState
from enginecore_wire.codec import Buffer
from enginecore_wire.control import (
    ControlMessage,
    Phase,
    Ping,
    Reject,
    RejectCode,
    Unknown,
)
from enginecore_wire.frames import decode_control, encode_control
from enginecore_wire.requests import RequestType, UtilityCall
from enginecore_wire.utility import Role

HELLO: Final = b"\x80"
PING: Final = b"\x82"
BYE: Final = b"\x89"
FENCE_METHOD: Final = "is_scheduler_paused"
_ENCODER: Final = msgspec.msgpack.Encoder()

_log = logging.getLogger(__name__)

_Handler = Callable[[Session, list[zmq.Frame]], None]


class ClientDesk:
    """Serves the exposed sockets: sessions, requests, calls, aborts.

    The sockets it answers on come with `open`, as they report to the desk themselves.

    Args:
        state: the books.
        link: the engine; used once it is ready.
        role_of: says what a public key allows, None if it may not be here.
    """

    def __init__(
        self,
        state: ServerState,
        link: EngineLink,
        role_of: Callable[[str], Role | None] = lambda _key: Role.ADMIN,
    ) -> None:
        self._state = state
        self._link = link
        self._role_of = role_of
        self._exposed: ExposedSockets | None = None
        self._entrance = Entrance(state, lambda: self.exposed, role_of, self.welcome)
        self._handlers: dict[bytes, _Handler] = {
            RequestType.ADD: self._add,
            RequestType.ABORT: self._abort,
            RequestType.UTILITY: self._utility,
            PING: self._ping,
            BYE: self._bye,
        }

    @property
    def exposed(self) -> ExposedSockets:
        """The sockets towards clients."""
        assert self._exposed is not None
        return self._exposed

    def open(self, exposed: ExposedSockets) -> None:
        """Give the desk the sockets it answers on."""
        self._exposed = exposed

    def client_message(self, side: Side, identity: bytes, frames: list[zmq.Frame]) -> None:
        """Handle one message of a client."""
        kind = frames[0].bytes
        session = self._state.book.find(identity)
        if session is not None and session.key and self.exposed.key_of(frames[0]) != session.key:
            self._entrance.turn_away(side, session, frames[0])
            return
        if kind == HELLO:
            self._entrance.hello(side, identity, frames)
            return
        if session is None:
            if kind != BYE:
                self._entrance.tell_stranger(identity, Unknown(type=kind[0] if kind else 0))
            return
        handler = self._handlers.get(kind) if side is Side.INPUT else None
        if handler is None:
            self._reject(session, unknown_type(kind))
        elif len(frames) < 2:
            self._reject(session, incomplete(kind))
        else:
            handler(session, frames)

    def client_disconnected(self, side: Side, fd: int) -> None:
        """Start the grace time of a client whose connection broke."""
        self._entrance.disconnected(side, fd)

    def connection_refused(self, side: Side, reason: Refusal) -> None:
        """Count a connection that failed its handshake."""
        self._entrance.refused(side, reason)

    def keys_changed(self) -> None:
        """Hold every client to what its key allows now; one that may not be here is cut off."""
        for session in self._state.book.sessions():
            role = self._role_of(session.key)
            if role is None:
                self.exposed.cut(session)
                self.end_session(session, "its key may not connect any more")
            else:
                session.role = role

    def client_too_slow(self, session: Session) -> None:
        """Give up a client that does not read; its connections are cut."""
        if self._state.book.find(session.identity) is session:
            self._state.tally.slow_clients += 1
            self.exposed.cut(session)
            self.end_session(session, "it does not read what it asked for")

    def tell(self, session: Session, message: ControlMessage) -> None:
        """Send a control message."""
        self.exposed.send(session, encode_control(message), engine_message=False)

    def tell_all(self, message: ControlMessage) -> None:
        """Send a control message to every session."""
        frames = encode_control(message)
        for session in self._state.book.sessions():
            self.exposed.send(session, frames, engine_message=False)

    def welcome(self, session: Session) -> None:
        """Tell a session how the engine is: READY and its load, or its phase."""
        if not self._state.phases.accepts_clients:
            self.tell(session, replies.phase_change(self._state))
            return
        self.tell(session, replies.ready(self._state, session))
        # Loads are told when they change: without this, an idle engine would look unknown.
        load = self._state.load.current(self._state.in_flight)
        self.tell(session, replies.stats(self._state, load, time.monotonic()))
        if self._state.phases.phase is Phase.DRAINING:
            self.tell(session, replies.draining(self._state))

    def end_session(self, session: Session, reason: str) -> None:
        """Abort a session's requests and let its slot go once the engine has done so."""
        ids = self._state.book.end(session)
        _log.info("client %r in slot %d is gone: %s", session.name, session.slot, reason)
        self.abort_in_engine(session.slot, ids, release=True)

    def abort_in_engine(self, slot: int, ids: list[str], release: bool = False) -> None:
        """Tell the engine to abort requests that are in no book any more."""
        for request_id in ids:
            note(_log, "request aborted", request_id=request_id, slot=slot)
        connected = True
        if ids:
            connected = self._link.send(RequestType.ABORT, _ENCODER.encode(ids))
        if not connected or not self._state.phases.accepts_clients:
            if release:
                self._state.book.release_slot(slot)
            return
        call_id = self._state.fences.raise_fence(slot, ids, release)
        if call_id is not None:
            self.send_fence(slot, call_id)

    def send_fence(self, slot: int, call_id: int) -> None:
        """Ask the engine for the reply that shows that an abort is done."""
        call = UtilityCall(slot, call_id, FENCE_METHOD, [])
        self._link.send(RequestType.UTILITY, _ENCODER.encode(call))

    def _add(self, session: Session, frames: list[zmq.Frame]) -> None:
        phase = self._state.phases.phase
        payloads, (body, *aux) = _payloads(frames)
        if not self._state.phases.accepts_clients:
            self._reject(session, closed(phase, request_id=request_id_of(body)))
            return
        verdict = self._state.admission.add(
            body, aux, session.slot, len(session.requests), self._state.in_flight, phase
        )
        if not isinstance(verdict, Add):
            self._reject(session, verdict)
            return
        self._forward(RequestType.ADD, verdict.body, payloads)
        note(
            _log,
            "request admitted",
            request_id=verdict.request_id,
            client=session.name,
            slot=session.slot,
            prompt_tokens=verdict.prompt_tokens,
        )
        self._state.book.add(session, verdict.request_id, verdict.prompt_tokens, time.monotonic())

    def _utility(self, session: Session, frames: list[zmq.Frame]) -> None:
        phase = self._state.phases.phase
        payloads, (body, *aux) = _payloads(frames)
        if not self._state.phases.accepts_clients:
            self._reject(session, closed(phase, call_id=call_id_of(body)))
            return
        verdict = self._state.admission.utility(
            body, aux, session.slot, session.calls, session.role
        )
        if isinstance(verdict, Reject):
            self._reject(session, verdict)
            return
        session.calls.add(verdict.call_id)
        for book in (self._state.adapters, self._state.sleep):
            book.asked(session.slot, verdict.call_id, verdict.method, verdict.args)
        self._forward(RequestType.UTILITY, verdict.body, payloads)
        note(
            _log,
            "call admitted",
            call_id=verdict.call_id,
            method=verdict.method,
            client=session.name,
            slot=session.slot,
        )

    def _abort(self, session: Session, frames: list[zmq.Frame]) -> None:
        if not self._state.phases.accepts_clients:
            return
        ids = self._state.admission.abort(frames[1].bytes)
        if isinstance(ids, Reject):
            self._reject(session, ids)
            return
        owned = self._state.book.owned(session, ids)
        requests = self._state.book.requests
        self._state.tally.foreign_aborts += sum(
            1 for name in ids if name in requests and requests[name].session is not session
        )
        if owned:
            self._state.book.forget(session, owned)
            self.abort_in_engine(session.slot, owned)

    def _ping(self, session: Session, frames: list[zmq.Frame]) -> None:
        try:
            ping = decode_control([frame.bytes for frame in frames])
        except msgspec.DecodeError as error:
            self._reject(session, Reject(code=RejectCode.INVALID_REQUEST, message=f"ping: {error}"))
            return
        assert isinstance(ping, Ping)
        self.tell(session, replies.pong(self._state, session, ping.sequence))

    def _bye(self, session: Session, _frames: list[zmq.Frame]) -> None:
        self.end_session(session, "it said goodbye")

    def _forward(self, kind: bytes, patched: bytes | None, payloads: list[Payload]) -> None:
        self._link.send(kind, payloads[0] if patched is None else patched, payloads[1:])

    def _reject(self, session: Session, reject: Reject) -> None:
        self._state.tally.rejected[reject.code] += 1
        note(
            _log,
            "message refused",
            request_id=reject.request_id,
            call_id=reject.call_id,
            code=reject.code,
            field=reject.field,
            reason=reject.message,
            client=session.name,
            slot=session.slot,
        )
        self.tell(session, reject)


def _payloads(frames: list[zmq.Frame]) -> tuple[list[Payload], list[Buffer]]:
    """Return what follows the type byte, as it is sent on and as it is read."""
    payloads = [payload(frame) for frame in frames[1:]]
    return payloads, [part if isinstance(part, bytes) else part.buffer for part in payloads]
