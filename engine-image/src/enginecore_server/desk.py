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
from enginecore_server.exposed import ExposedSockets, Payload, payload
from enginecore_server.logs import note
from enginecore_server.sessions import Greeting, Session, Side
from enginecore_server.state import ServerState
from enginecore_wire.codec import Buffer
from enginecore_wire.control import (
    ControlMessage,
    Hello,
    Phase,
    Ping,
    Reject,
    RejectCode,
    Replaced,
    Unknown,
)
from enginecore_wire.frames import decode_control, encode_control
from enginecore_wire.layouts import Layout
from enginecore_wire.requests import RequestType, UtilityCall
from enginecore_wire.version import PROTOCOL_MINIMUM, PROTOCOL_VERSION, agree

HELLO: Final = b"\x80"
PING: Final = b"\x82"
BYE: Final = b"\x89"
NONCE_BYTES: Final = 8
NAME_CHARACTERS: Final = 128
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
    """

    def __init__(self, state: ServerState, link: EngineLink) -> None:
        self._state = state
        self._link = link
        self._exposed: ExposedSockets | None = None
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
        if kind == HELLO:
            self._hello(side, identity, frames)
            return
        session = self._state.book.find(identity)
        if session is None:
            if kind != BYE:
                self._stranger(identity, Unknown(type=kind[0] if kind else 0))
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
        self._state.book.disconnected(side, fd, time.monotonic())

    def connection_refused(self) -> None:
        """Count a connection that failed its handshake."""
        self._state.tally.refused_connections += 1

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

    def _hello(self, side: Side, identity: bytes, frames: list[zmq.Frame]) -> None:
        hello = self._read_hello(identity, frames)
        if hello is None:
            return
        protocol = agree(hello.protocol, hello.protocol_minimum)
        layout = self._state.dialect.layout
        if protocol is None or layout not in hello.layouts:
            self._stranger(identity, _mismatch(hello, layout))
            return
        fd = self.exposed.connection_of(side, frames[0])
        name = hello.name[:NAME_CHARACTERS]
        greeting = self._state.book.hello(side, identity, hello.nonce, name, fd, protocol)
        if greeting is Greeting.CONFLICT:
            self._stranger(identity, Replaced("this routing id is another client's"))
        elif greeting is Greeting.ENDED:
            self._stranger(identity, Replaced("this session was given up; open a new pair"))
        elif greeting is Greeting.FULL:
            self._stranger(identity, _no_slot(self._state.config.transport.max_clients))
        elif greeting is not Greeting.INCOMPLETE:
            session = self._state.book.find(identity)
            assert session is not None
            if greeting is Greeting.OPENED:
                _log.info("client %r has slot %d", session.name, session.slot)
            self.exposed.flush(session)
            self.welcome(session)

    def _read_hello(self, identity: bytes, frames: list[zmq.Frame]) -> Hello | None:
        problem = f"hello: expected a nonce of {NONCE_BYTES} bytes"
        try:
            hello = decode_control([frame.bytes for frame in frames])
            if isinstance(hello, Hello) and len(hello.nonce) == NONCE_BYTES:
                return hello
        except msgspec.DecodeError as error:
            problem = f"hello: {error}"
        self._stranger(identity, Reject(code=RejectCode.INVALID_REQUEST, message=problem))
        return None

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
        self._state.adapters.asked(session.slot, verdict.call_id, verdict.method, verdict.args)
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

    def _stranger(self, identity: bytes, message: ControlMessage) -> None:
        if isinstance(message, Reject):
            self._state.tally.rejected[message.code] += 1
        self.exposed.send_stranger(identity, encode_control(message))


def _payloads(frames: list[zmq.Frame]) -> tuple[list[Payload], list[Buffer]]:
    """Return what follows the type byte, as it is sent on and as it is read."""
    payloads = [payload(frame) for frame in frames[1:]]
    return payloads, [part if isinstance(part, bytes) else part.buffer for part in payloads]


def _mismatch(hello: Hello, layout: Layout) -> Reject:
    layouts = ", ".join(name[:16] for name in hello.layouts[:16])
    return Reject(
        code=RejectCode.PROTOCOL_MISMATCH,
        message=(
            f"client speaks protocol {hello.protocol_minimum} to {hello.protocol}, layouts "
            f"{layouts or 'none'}; this pod protocol {PROTOCOL_MINIMUM} to "
            f"{PROTOCOL_VERSION}, "
            f"layout {layout}; use matching releases"
        ),
    )


def _no_slot(max_clients: int) -> Reject:
    return Reject(
        code=RejectCode.TOO_MANY_CLIENTS,
        message=(
            f"all {max_clients} client slots are taken (transport.max_clients); close a client "
            "or use another engine"
        ),
    )
