"""The session with one engine server, without its sockets.

It is the life of one DEALER pair; its states are in `states`. Three rules hold throughout:

- a request leaves only in Ready or Draining; until then it waits in the outbox, so that
  READY's list of requests can be compared with what was really sent;
- the session is broken (`broken_at`) from the first disconnect to the next READY;
- engine messages that come after the output socket lost its connection, and before the next READY,
  are `doubtful`: nobody knows yet whether there is a hole before them.
"""

from collections import deque
from typing import Final

from msgspec.structs import replace

from enginecore_client._addresses.addresses import ClientAddresses, Endpoint
from enginecore_client._core.admission import unusable
from enginecore_client._core.books import Ids, Outgoing
from enginecore_client._core.connection import Connection, Opening, Transport
from enginecore_client._core.states import FINAL, TRANSITIONS, WORKING, Channel, Move, State
from enginecore_client.errors import EngineDeadError, ProtocolMismatchError
from enginecore_wire.control import (
    ControlMessage,
    Draining,
    Hello,
    Phase,
    PhaseChange,
    Ping,
    Pong,
    Ready,
    Reject,
    Replaced,
    Timers,
    Unknown,
)
from enginecore_wire.dialects import dialect_in
from enginecore_wire.frames import Frame, control_type, decode_control, encode_control
from enginecore_wire.layouts import LayoutError
from enginecore_wire.outputs import is_last_word
from enginecore_wire.version import LAYOUTS, PROTOCOL_MINIMUM, PROTOCOL_VERSION

HELLO_AGAIN_SECONDS: Final = 1.0
"""HELLO is repeated when nothing answers it."""

REOPEN_FIRST_SECONDS: Final = 0.1
REOPEN_MAX_SECONDS: Final = 2.0


class PodConnection(Connection):
    """State, liveness, counters and outbox of one pair.

    Args:
        link: the pair's number.
        endpoint: the addresses it was opened to.
        routing_id: the routing id of both sockets, 16 bytes.
        hello: what to say first; its nonce is the session's.
        now: monotonic seconds, as everywhere.
        reconnect_seconds: how long a broken session may take to come back.
    """

    transitions = TRANSITIONS

    def __init__(
        self,
        link: int,
        endpoint: Endpoint,
        routing_id: bytes,
        hello: Hello,
        now: float,
        reconnect_seconds: float,
    ) -> None:
        super().__init__(link, endpoint, routing_id, now)
        self.phase = PhaseChange(phase="", reason="")
        self.broken_at: float | None = None
        self._nonce = hello.nonce
        self._hello = hello
        self._greetings: deque[tuple[Channel, list[bytes]]] = deque()
        self._up: set[Channel] = set()
        self._reconnect_seconds = reconnect_seconds
        self._heard_at = now
        self._hello_at = now
        self._ping_at = now
        self._ping_waits = False
        self._sequence = 0
        self._countable = True

    @property
    def timers(self) -> Timers:
        """Return the pod's timers, or the defaults until READY."""
        return self.ready.timers if self.ready else Timers()

    @property
    def waits_to_send(self) -> bool:
        """Say whether there may be frames to send."""
        return bool(self._greetings or self.outbox)

    def connected(self, channel: Channel, now: float, *, at_once: bool = False) -> None:
        """Take note that the ZMQ handshake of one socket succeeded (again).

        What came over the new connection before the pod heard HELLO may be behind a hole: it is
        sent again with the rest, and does not count. `at_once`: nobody can tell what came over
        which connection, so nothing can be sent again.
        """
        if self.ready is not None and self.broken_at is None:
            self.broken_at = now
        if channel is Channel.OUTPUT and self.doubtful:
            self._countable = not at_once
            self.received -= len(self.held)
            self.held.clear()
        self._up.add(channel)
        self._greet(channel, now)
        if len(self._up) == len(Channel):
            self._move(Move.UP, now)

    def disconnected(self, channel: Channel, now: float) -> None:
        """Take note that one socket lost its connection."""
        if channel in self._up:
            self.listened = False
        if self.ready is not None:
            if channel is Channel.OUTPUT:
                self.doubtful = True
            else:
                self.calls_doubtful = True
        self._up.discard(channel)
        self._greetings = deque(item for item in self._greetings if item[0] is not channel)
        if self.ready is not None and self.broken_at is None:
            self.broken_at = now
        self._move(Move.DOWN, now)

    def receive(self, frames: list[Frame], now: float) -> ControlMessage | None:
        """Take a message in; return it if it is a control message the owner acts on.

        Engine messages only count here; their content is the owner's.

        Raises:
            msgspec.DecodeError: a control message is broken; nothing else is harmed.
        """
        self._heard_at = now
        first = frames[0]
        if control_type(first) is not None:
            message = decode_control(frames)
            return self._control(message, now) if message is not None else None
        if is_last_word(frames):
            self._end(Move.DIED, EngineDeadError("the engine process died"), now)
            return None
        self.received += 1
        return None

    def tick(self, now: float) -> None:
        """Let time pass: PING, silence, a break that lasts, a HELLO nobody answered."""
        if self.broken_at is not None and now - self.broken_at >= self._reconnect_seconds:
            self.lose(f"its connection broke and was not back after {now - self.broken_at:.1f} s",
                      now)  # fmt: skip
        elif self.state in WORKING:
            silence = now - self._heard_at
            if silence > self.timers.lost_after_seconds:
                self.lose(f"no message came from it for {silence:.1f} s", now)
            elif now >= self._ping_at and not self._ping_waits:
                self._ping(now)
        elif self.state is State.HELLO and now - self._hello_at >= HELLO_AGAIN_SECONDS:
            for channel in Channel:
                self._greet(channel, now)

    def overslept(self, now: float) -> None:
        """Forgive the pod a silence during which this process did not run."""
        self._heard_at = now

    def next_frames(self) -> tuple[Channel, list[Frame]] | None:
        """Return the next frames to send and their socket, or None."""
        if self._greetings:
            channel, frames = self._greetings[0]
            return channel, list(frames)
        if self.outbox and self.state in WORKING:
            return Channel.INPUT, list(self.outbox[0].frames)
        return None

    def sent(self) -> None:
        """Take note that what next_frames returned was handed to ZMQ."""
        if self._greetings:
            self._greetings.popleft()
            return
        outgoing = self.outbox.popleft()
        if outgoing.record is not None:
            outgoing.record.sent = True
        if outgoing.frames[0] == _PING_TYPE:
            self._ping_waits = False

    def describe(self, now: float) -> str:
        """Return where a connection that is not ready stands, for an error's text."""
        where = f"{self.endpoint.input_address}"
        if self.name_error:
            return f"{where}: {self.name_error}"
        if self.refusal is not None:
            return f"{where}: refused ({self.refusal.code}): {self.refusal.message}"
        if self.state is State.LOADING:
            seconds = self.phase.since_seconds + now - self.since
            reason = f" ({self.phase.reason})" if self.phase.reason else ""
            return f"{where}: phase {self.phase.phase}{reason} for {seconds:.0f} s"
        waits = {
            State.CONNECTING: _STRANGER if self.listened else "Connecting, nobody answers there",
            State.HELLO: "Hello, connected but HELLO was not answered (are input_address and "
            "output_address swapped, or is it no engine server?)",
        }
        return f"{where}: {waits.get(self.state, self.state)}, for {now - self.since:.0f} s"

    def _control(self, message: ControlMessage, now: float) -> ControlMessage | None:
        match message:
            case Ready():
                return self._answered(message, now)
            case Pong():
                if message.nonce and message.nonce != self._nonce:
                    self.lose("another session answers under its routing id", now)
                self.live_clients = message.live_clients
            case PhaseChange():
                self._phase(message, now)
            case Draining() if self.ready is not None:
                self.draining = True
                self._move(Move.DRAIN, now)
            case Unknown():
                if self.state in WORKING and self.broken_at is None:
                    self.broken_at = now
                self._move(Move.FORGOTTEN, now)
                for channel in self._up:
                    self._greet(channel, now)
            case Replaced():
                self.lose(f"the pod gave the session up ({message.reason})", now)
            case Reject(request_id=None, call_id=None):
                self.refusal = message if self.state is State.HELLO else self.refusal
        return message

    def _answered(self, ready: Ready, now: float) -> Ready | None:
        if ready.nonce != self._nonce or self.state in FINAL:
            return None
        if ready.layout not in LAYOUTS or not (
            PROTOCOL_MINIMUM <= ready.protocol <= PROTOCOL_VERSION
        ):
            self._end(Move.GONE, mismatch(ready.protocol, ready.layout), now)
            return None
        try:
            dialect = dialect_in(ready.layout, ready.runtime_version)
        except LayoutError as error:
            self._end(Move.GONE, ProtocolMismatchError(str(error)), now)
            return None
        wrong = unusable(ready)
        if wrong is not None:
            text = f"the pod's READY cannot be used: {wrong}; update or repair the pod"
            self._end(Move.GONE, ProtocolMismatchError(text), now)
            return None
        if self.ready is not None and ready.epoch != self.ready.epoch:
            self.lose(f"epoch {ready.epoch} answers where epoch {self.ready.epoch} was", now)
            return None
        if self.ready is not None and ready.name != self.ready.name:
            self.lose(f"{ready.name!r} answers where {self.ready.name!r} was", now)
            return None
        self.ready = ready
        self.dialect = dialect
        self.live_clients = ready.live_clients
        self.broken_at = None
        self.doubtful = False
        self.refusal = None
        self.draining = False
        self._ping_at = now + ready.timers.ping_seconds
        self._move(Move.READY, now)
        return ready

    def _phase(self, message: PhaseChange, now: float) -> None:
        self.phase = message
        self.refusal = None
        if self.ready is None:
            self._move(Move.PHASE, now)
        elif message.phase == Phase.DRAINING:
            self.broken_at = None
            self.draining = True
            self._move(Move.DRAIN, now)
        elif self.broken_at is not None:
            self.lose(f"another process answers, in phase {message.phase}", now)

    def _greet(self, channel: Channel, now: float) -> None:
        self._greetings = deque(item for item in self._greetings if item[0] is not channel)
        hello = self._hello
        if channel is Channel.OUTPUT and self.doubtful:
            hello = replace(hello, received=self.received if self._countable else -1)
        self._greetings.append((channel, encode_control(hello)))
        self._hello_at = now

    def _ping(self, now: float) -> None:
        self._sequence += 1
        self._ping_at = now + self.timers.ping_seconds
        self._ping_waits = True
        self.outbox.append(Outgoing(encode_control(Ping(self._sequence))))


_STRANGER: Final = (
    "Connecting, something listens there that is no engine server, or stands still; is it another "
    "port, such as that for HTTP?"
)

_PING_TYPE: Final = encode_control(Ping())[0]


def mismatch(protocol: int, layout: str) -> ProtocolMismatchError:
    """Return the error that a pod chose something this client does not speak."""
    return ProtocolMismatchError(
        f"the pod speaks protocol {protocol}, layout {layout}; this client speaks protocol "
        f"{PROTOCOL_MINIMUM} to {PROTOCOL_VERSION}, layouts {', '.join(LAYOUTS)}: "
        "update the older of the two"
    )


class PodTransport(Transport):
    """Engines behind engine servers: one pair of sockets to each address.

    Args:
        name: the client's name, for the pods' logs.
        ids: where routing ids and nonces come from.
        reconnect_seconds: how long a broken session may take to come back.
    """

    def __init__(self, name: str, ids: Ids, reconnect_seconds: float) -> None:
        self._name = name
        self._ids = ids
        self._reconnect_seconds = reconnect_seconds

    def endpoints(self, addresses: ClientAddresses) -> tuple[Endpoint, ...]:
        """Return the engines that have an address."""
        return addresses.endpoints

    def open(self, opening: Opening) -> Connection:
        """Return a new session; nothing of an earlier one is used again."""
        hello = Hello(nonce=self._ids.nonce(), name=self._name)
        return PodConnection(
            opening.link,
            opening.endpoint,
            self._ids.routing(),
            hello,
            opening.now,
            self._reconnect_seconds,
        )

    def reopen_seconds(self, failures: int) -> float:
        """Back off: the pod behind an address may be gone for good."""
        return min(REOPEN_FIRST_SECONDS * 2.0**failures, REOPEN_MAX_SECONDS)
