"""Who comes in and who does not: HELLO, failed connections, strangers, impostors."""

import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

import msgspec
import zmq

from enginecore_curve.rare_log import RareLog
from enginecore_server.exposed import ExposedSockets
from enginecore_server.monitors import Refusal
from enginecore_server.sessions import Greeting, Holder, Session, Side
from enginecore_server.state import ServerState
from enginecore_wire.control import ControlMessage, Hello, Reject, RejectCode, Replaced
from enginecore_wire.frames import decode_control, encode_control
from enginecore_wire.layouts import Layout
from enginecore_wire.utility import Role
from enginecore_wire.version import PROTOCOL_MINIMUM, PROTOCOL_VERSION, agree

NONCE_BYTES: Final = 8
NAME_CHARACTERS: Final = 128

_log = logging.getLogger(__name__)


class Entrance:
    """Makes sessions of connections.

    Args:
        state: the books.
        exposed: gives the sockets, once they are there.
        role_of: says what a public key allows, None if it may not be here.
        welcome: tells a session how the engine is.
    """

    def __init__(
        self,
        state: ServerState,
        exposed: Callable[[], ExposedSockets],
        role_of: Callable[[str], Role | None],
        welcome: Callable[[Session], None],
    ) -> None:
        self._state = state
        self._exposed = exposed
        self._role_of = role_of
        self._welcome = welcome
        self._refused = Counter[Side]()
        self._impostors = RareLog(_log)

    def disconnected(self, side: Side, fd: int) -> None:
        """Start the grace time of a client whose connection broke."""
        if self._state.book.knows(side, fd):
            if self._state.book.disconnected(side, fd, time.monotonic()) is not None:
                self._exposed().settle()
            return
        self._exposed().unheard(side, fd)
        if self._refused[side]:  # it is counted already
            self._refused[side] -= 1
        else:
            self._state.tally.refused_connections[Refusal.NO_SESSION] += 1

    def refused(self, side: Side, reason: Refusal) -> None:
        """Count a connection that failed its handshake."""
        self._refused[side] += 1
        self._state.tally.refused_connections[reason] += 1

    def hello(self, side: Side, identity: bytes, frames: list[zmq.Frame]) -> None:
        """Take a HELLO of a stranger, or of a session's owner."""
        hello = self._read_hello(identity, frames)
        if hello is None:
            return
        protocol = agree(hello.protocol, hello.protocol_minimum)
        layout = self._state.dialect.layout
        if protocol is None or layout not in hello.layouts:
            self.tell_stranger(identity, _mismatch(hello, layout))
            return
        fd = self._exposed().connections.of(side, frames[0])
        if fd is None:  # it has left since, as far as can be told
            return
        key = self._exposed().key_of(frames[0])
        role = self._role_of(key)
        if role is None:
            self._exposed().connections.cut(fd)
            return
        name = hello.name[:NAME_CHARACTERS]
        known = self._state.book.find(identity)
        back = side is Side.OUTPUT and known is not None and known.held
        greeting = self._state.book.hello(
            side, identity, hello.nonce, name, fd, protocol, Holder(key, role)
        )
        if known is not None and back and greeting in (Greeting.INCOMPLETE, Greeting.REPEATED):
            again = self._exposed().replay(known, hello.received)
            self._state.tally.outputs_replayed += again
        if greeting is Greeting.CONFLICT:
            self.tell_stranger(identity, Replaced("this routing id is another client's"))
        elif greeting is Greeting.ENDED:
            self.tell_stranger(identity, Replaced("this session was given up; open a new pair"))
        elif greeting is Greeting.FULL:
            self.tell_stranger(identity, _no_slot(self._state.config.transport.max_clients))
        elif greeting is not Greeting.INCOMPLETE:
            session = self._state.book.find(identity)
            assert session is not None
            if greeting is Greeting.OPENED:
                _log.info("client %r has slot %d", session.name, session.slot)
            self._exposed().flush(session)
            self._welcome(session)

    def turn_away(self, side: Side, session: Session, frame: zmq.Frame) -> None:
        """Cut off whoever uses the routing id of another key's client; it gets no answer, as that
        would go to the client."""
        self._state.tally.impostors += 1
        fd = self._exposed().connections.of(side, frame)
        if fd is None:  # it was cut at an earlier message
            return
        self._exposed().connections.cut(fd)
        self._impostors.warning(
            "key %s used the routing id of client %r in slot %d",
            self._exposed().key_of(frame),
            session.name,
            session.slot,
        )

    def _read_hello(self, identity: bytes, frames: list[zmq.Frame]) -> Hello | None:
        problem = f"hello: expected a nonce of {NONCE_BYTES} bytes"
        try:
            hello = decode_control([frame.bytes for frame in frames])
            if isinstance(hello, Hello) and len(hello.nonce) == NONCE_BYTES:
                return hello
        except msgspec.DecodeError as error:
            problem = f"hello: {error}"
        self.tell_stranger(identity, Reject(code=RejectCode.INVALID_REQUEST, message=problem))
        return None

    def tell_stranger(self, identity: bytes, message: ControlMessage) -> None:
        """Send to a routing id without a session."""
        if isinstance(message, Reject):
            self._state.tally.rejected[message.code] += 1
        self._exposed().send_stranger(identity, encode_control(message))


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
