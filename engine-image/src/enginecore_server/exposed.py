"""The two exposed sockets: what clients send comes in, what they get goes out."""

import asyncio
import contextlib
import errno
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import zmq

from enginecore_curve.keys import KeyPair, serve_curve
from enginecore_server.binding import BindError, bind
from enginecore_server.connections import Connections
from enginecore_server.monitors import Refusal
from enginecore_server.readers import BURST, SocketReader
from enginecore_server.replay import is_engine_message
from enginecore_server.sessions import Session, Side
from enginecore_wire.contract import TransportConfig

Payload = bytes | zmq.Frame

_SEND_HWM: Final = 1000
_FIRST: Final = int(zmq.NOBLOCK | zmq.SNDMORE)
_LAST: Final = int(zmq.NOBLOCK)
_COPIED_BYTES: Final = 65536
_SLACK_BYTES: Final = 1 << 20
_FLUSH_SECONDS: Final = 0.005
_SETTLE_SECONDS: Final = 0.02
"""The monitor tells of a broken connection a little before ZMQ takes it away; clients wait 0.1 s
before they connect again."""

_HEARTBEAT: Final = ((zmq.HEARTBEAT_IVL, 1000), (zmq.HEARTBEAT_TIMEOUT, 2500),
                     (zmq.HEARTBEAT_TTL, 3500), (zmq.HANDSHAKE_IVL, 2000), (zmq.BACKLOG, 1024),
                     (zmq.IPV6, 1), (zmq.ROUTER_HANDOVER, 1), (zmq.ROUTER_MANDATORY, 1),
                     (zmq.SNDHWM, _SEND_HWM))  # fmt: skip


class ClientListener(Protocol):
    """Whoever is told what comes in. All methods are called on the event loop."""

    def client_message(self, side: Side, identity: bytes, frames: list[zmq.Frame]) -> None:
        """A client's message came: type, body, aux frames."""

    def client_disconnected(self, side: Side, fd: int) -> None:
        """A connection broke."""

    def connection_refused(self, side: Side, reason: Refusal) -> None:
        """Something that is no ZMQ peer, or not allowed, tried to connect; that it disconnected
        is told next."""

    def client_too_slow(self, session: Session) -> None:
        """More waits for a client than may wait."""


class ExposedSockets:
    """Input and output ROUTER, bound, with the options of docs/protocol.md.

    Args:
        context: owns the sockets.
        transport: where to listen.
        frame_bytes: frames a little larger still arrive, to be refused politely; a peer
            that sends a much larger one is disconnected.
        listener: told what comes.
        pair: the server's keys; None for sockets without CURVE, which take anybody.

    Attributes:
        connections: who is connected.

    Raises:
        BindError: an address is taken or not this host's.
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        transport: TransportConfig,
        frame_bytes: int,
        listener: ClientListener,
        pair: KeyPair | None = None,
    ) -> None:
        self._listener = listener
        self._secured = pair is not None
        self._input = self._socket(context, 2 * frame_bytes + _SLACK_BYTES)
        self._output = self._socket(context, _SLACK_BYTES)
        self._input.set(zmq.RCVHWM, 10000)
        self._output.set(zmq.RCVHWM, 1000)
        if pair is not None:
            for side, socket in ((Side.INPUT, self._input), (Side.OUTPUT, self._output)):
                serve_curve(socket, pair, side.value.encode())
                # A name stays with whoever is connected under it: nobody else gets its stream.
                socket.set(zmq.ROUTER_HANDOVER, 0)
        self.connections = Connections(
            {Side.INPUT: self._input, Side.OUTPUT: self._output},
            listener.client_disconnected,
            listener.connection_refused,
        )
        try:
            self.input_port = bind(self._input, transport.host, transport.input_port, "input_port")
            self.output_port = bind(
                self._output, transport.host, transport.output_port, "output_port"
            )
        except BindError:
            self.connections.close()
            self._input.close(linger=0)
            self._output.close(linger=0)
            raise
        self._readers = {
            Side.INPUT: SocketReader(self._input, lambda: self._drain(self._input, Side.INPUT)),
            Side.OUTPUT: SocketReader(self._output, lambda: self._drain(self._output, Side.OUTPUT)),
        }
        # pyzmq's own `send` in Python costs as much again as sending; this is the C one under it.
        self._send: Callable[..., object] = super(zmq.Socket, self._output).send
        self._backlog_limit = transport.backlog_bytes
        self._waiting: dict[bytes, Session] = {}
        self._flush_timer: asyncio.TimerHandle | None = None

    def relay(self, session: Session, body: Payload, rest: list[zmq.Frame]) -> None:
        """Send an engine message, or queue it behind what waits for the client already.

        Args:
            body: the first frame, as `payload` gives it.
            rest: the other frames.
        """
        session.outputs_sent += 1
        if rest or session.backlog or session.held or not isinstance(body, bytes):
            frames = [body, *map(payload, rest)]
            session.sent.add_frames(frames)
            self._send_or_queue(session, frames)
            return
        session.sent.add(body)
        try:
            self._send(session.identity, _FIRST)
        except zmq.ZMQError as error:
            self._queue(session, [body], error)
            return
        self._send(body, _LAST)

    def send(self, session: Session, frames: Sequence[Payload], engine_message: bool) -> None:
        """Send frames made here; `engine_message` says whether they count as one."""
        if engine_message:
            session.outputs_sent += 1
            session.sent.add_frames(frames)
        self._send_or_queue(session, list(frames))

    def send_stranger(self, identity: bytes, frames: Sequence[bytes]) -> None:
        """Send to a routing id without a session; nothing happens if it is not connected."""
        with contextlib.suppress(zmq.ZMQError):
            self._transmit(identity, frames)

    def unheard(self, side: Side, fd: int) -> None:
        """Note the end of a connection that had said nothing so far, and look what it has sent."""
        self.connections.unheard(side, fd)
        asyncio.get_running_loop().call_soon(self._readers[side].look)

    def key_of(self, frame: zmq.Frame) -> str:
        """Return the public key of whoever sent a message; "" without CURVE."""
        return str(frame.get("User-Id")) if self._secured else ""

    def replay(self, session: Session, received: int) -> int:
        """Put what a client did not get, of which it `received` so many (negative: it does not
        say), before what waits for it; return how many messages."""
        waiting = sum(map(is_engine_message, session.backlog))
        missing = session.outputs_sent - waiting - received
        again = session.sent.before(waiting, missing) if received >= 0 else []
        session.backlog.extendleft([body] for body in reversed(again))
        session.backlog_bytes += _size(again)
        session.replayed_bytes += _size(again)
        return len(again)

    def flush(self, session: Session) -> None:
        """Send what waits for a client, as far as its connection takes it."""
        backlog = session.backlog
        while backlog and not session.held:
            try:
                self._transmit(session.identity, backlog[0])
            except zmq.ZMQError as error:
                self._not_sent(session, error)
                self._flush_later(session)
                return
            session.backlog_bytes -= _size(backlog.popleft())
        if not backlog:
            session.replayed_bytes = 0

    def cut(self, session: Session) -> None:
        """Break a client's connections."""
        self.connections.cut_all(session.fds)

    def settle(self) -> None:
        """Have ZMQ forget a broken connection soon: until its end was read, its name is taken."""
        for reader in self._readers.values():
            asyncio.get_running_loop().call_later(_SETTLE_SECONDS, reader.poke)

    def poke(self) -> None:
        """Handle what missed its wake-up."""
        self.connections.poke()
        for reader in self._readers.values():
            reader.poke()

    def close(self, linger_seconds: float) -> None:
        """Close; what clients have not read yet is still sent for `linger_seconds`."""
        if self._flush_timer is not None:
            self._flush_timer.cancel()
        for reader in self._readers.values():
            reader.close()
        self.connections.close()
        self._input.close(linger=0)
        self._output.close(linger=round(linger_seconds * 1000))

    def _socket(
        self, context: "zmq.Context[zmq.Socket[bytes]]", largest: int
    ) -> "zmq.Socket[bytes]":
        socket = context.socket(zmq.ROUTER)
        for option, value in _HEARTBEAT:
            socket.set(option, value)
        socket.set(zmq.MAXMSGSIZE, largest)
        return socket

    def _drain(self, socket: "zmq.Socket[bytes]", side: Side) -> bool:
        for _ in range(BURST):
            try:
                identity = socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                self.connections.all_read(side)
                return False
            frame = socket.recv(zmq.NOBLOCK, False)
            frames = [frame]
            while frame.more:
                frame = socket.recv(zmq.NOBLOCK, False)
                frames.append(frame)
            self._listener.client_message(side, identity, frames)
        return True

    def _send_or_queue(self, session: Session, frames: list[Payload]) -> None:
        if session.backlog or session.held:
            self._append(session, frames)
            return
        try:
            self._transmit(session.identity, frames)
        except zmq.ZMQError as error:
            self._queue(session, frames, error)

    def _transmit(self, identity: bytes, frames: Sequence[Payload]) -> None:
        self._send(identity, _FIRST)
        last = len(frames) - 1
        for index, frame in enumerate(frames):
            self._send(frame, _FIRST if index < last else _LAST, isinstance(frame, bytes))

    def _queue(self, session: Session, frames: list[Payload], error: zmq.ZMQError) -> None:
        self._not_sent(session, error)
        self._append(session, frames)

    def _not_sent(self, session: Session, error: zmq.ZMQError) -> None:
        """A full pipe (EAGAIN) has room again. A connection that is gone (EHOSTUNREACH) does not
        come back; the monitor tells of it later, but not if what we have is another one's fd."""
        if error.errno == errno.EHOSTUNREACH:
            session.broke(Side.OUTPUT, time.monotonic())
            self.settle()
        elif error.errno != errno.EAGAIN:
            raise error

    def _append(self, session: Session, frames: list[Payload]) -> None:
        session.backlog.append(frames)
        session.backlog_bytes += _size(frames)
        # What was lost on the way is sent again: that is not the client's fault.
        if session.backlog_bytes - session.replayed_bytes > self._backlog_limit:
            self._listener.client_too_slow(session)
        else:
            self._flush_later(session)

    def _flush_later(self, session: Session) -> None:
        """A full pipe gives no signal when it has room again, so try by time; a broken
        connection is flushed when its client says HELLO again."""
        if session.connected:
            self._waiting[session.identity] = session
            if self._flush_timer is None:
                loop = asyncio.get_running_loop()
                self._flush_timer = loop.call_later(_FLUSH_SECONDS, self._flush_waiting)

    def _flush_waiting(self) -> None:
        self._flush_timer = None
        waiting, self._waiting = self._waiting, {}
        for session in waiting.values():
            self.flush(session)


def payload(frame: zmq.Frame) -> Payload:
    """Return a frame in the form that is cheapest to send: a small one as a copy of its bytes."""
    return frame.bytes if len(frame) < _COPIED_BYTES else frame


def _size(frames: Sequence[Payload]) -> int:
    return sum(len(frame) for frame in frames)
