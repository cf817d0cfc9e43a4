"""What the core knows of one engine process, whatever carries its messages.

A connection begins when an engine is expected and ends for good when it is lost; the next
process of the same rank is another connection. `session` has the one to an engine server,
`native` the one to an engine that dials in.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final, NamedTuple

from enginecore_client._addresses.addresses import ClientAddresses, Endpoint
from enginecore_client._core.books import CallRecord, Outgoing, RequestRecord
from enginecore_client._core.roll import Roll
from enginecore_client._core.states import FINAL, WORKING, Channel, Move, State
from enginecore_client.errors import AuthenticationError, EngineCoreError, EngineDeadError
from enginecore_wire.control import ControlMessage, Ready, Reject
from enginecore_wire.dialects import NATIVE
from enginecore_wire.frames import Frame

CUT_OFF_SECONDS: Final = 5.0
"""Handshakes that end without a word for so long mean that the keys do not fit."""

_CUT: Final = (
    "it ends every handshake without a word: the server_key of its address is not the key of the "
    "server there, or no engine server listens there; take the key from the cluster's status, and "
    "check the port"
)


class Connection(ABC):
    """State, books and outbox of one engine process.

    Args:
        link: its number among all connections of the client.
        endpoint: where it is expected.
        routing_id: the name under which its sockets are known.
        now: monotonic seconds, as everywhere.
    """

    transitions: ClassVar[Mapping[State, Mapping[Move, State]]]

    def __init__(self, link: int, endpoint: Endpoint, routing_id: bytes, now: float) -> None:
        self.link = link
        self.endpoint = endpoint
        self.place = endpoint.key
        self.routing_id = routing_id
        self.opened_at = now
        self.state = State.CONNECTING
        self.ended = False
        self.works = False
        self.since = now
        self.refusal: Reject | None = None
        self.name_error = ""
        self.listened = False
        self.cut_since: float | None = None
        self.ready: Ready | None = None
        self.dialect = NATIVE
        self.error: EngineCoreError | None = None
        self.requests: dict[str, RequestRecord] = {}
        self.roll = Roll()
        self.calls: dict[int, CallRecord] = {}
        self.live_clients = 1
        self.received = 0
        self.doubtful = False
        self.calls_doubtful = False
        self.held: list[list[Frame]] = []
        self.draining = False
        self.outbox: deque[Outgoing] = deque()

    @property
    def accepting(self) -> bool:
        """Say whether a new request may go here."""
        return self.state is State.READY

    def forget(self, internal_id: str) -> None:
        """Take note that a request is not this engine's any more."""
        self.requests.pop(internal_id, None)
        self.roll.clear()

    @property
    def waits_to_send(self) -> bool:
        """Say whether there may be frames to send."""
        return bool(self.outbox)

    @abstractmethod
    def connected(self, channel: Channel, now: float, *, at_once: bool = False) -> None:
        """Take note that the engine's end of a socket is there (again); `at_once`: that was told
        together with its being away, and with what came before and after."""

    @abstractmethod
    def disconnected(self, channel: Channel, now: float) -> None:
        """Take note that a socket lost its connection."""

    def announced(self, payload: Frame, now: float) -> Ready | None:  # noqa: ARG002
        """Take vLLM's READY payload, if engines of this kind send it; return what it says.

        Raises:
            msgspec.DecodeError: it cannot be read; nothing else is harmed.
        """
        return None

    def staged(self, stage: str, now: float) -> None:  # noqa: B027 - pods say so themselves
        """Take note how far an engine has come that is not ready."""

    def exited(self, ending: str, now: float) -> None:
        """Take note that the engine's process `ending`, such as "ended with status 1"."""
        self._end(Move.DIED, EngineDeadError(f"the engine process {ending}"), now)

    def refused(self, error: AuthenticationError, now: float) -> None:
        """Take note that one side does not take the other's key."""
        self._end(Move.GONE, error, now)

    def cut_off(self, now: float) -> None:
        """Take note that the other side ended a handshake without a word, as a server does that
        has another key; one that is just ending does it, too, but not for long."""
        if self.cut_since is None:
            self.cut_since = now
        elif now - self.cut_since >= CUT_OFF_SECONDS:
            self.refused(AuthenticationError(_CUT), now)

    @abstractmethod
    def receive(self, frames: list[Frame], now: float) -> ControlMessage | None:
        """Take a message in; return it if it is a control message the owner acts on.

        Engine messages only count here; their content is the owner's.

        Raises:
            msgspec.DecodeError: the message is broken; nothing else is harmed.
        """

    @abstractmethod
    def tick(self, now: float) -> None:
        """Let time pass."""

    @abstractmethod
    def overslept(self, now: float) -> None:
        """Forgive a silence during which this process did not run."""

    @abstractmethod
    def next_frames(self) -> tuple[Channel, list[Frame]] | None:
        """Return the next frames to send and their socket, or None."""

    @abstractmethod
    def sent(self) -> None:
        """Take note that what next_frames returned was handed to ZMQ."""

    def last_frames(self) -> Sequence[Frame]:
        """Return what an engine has to be told that BYE does not say, when the client leaves."""
        return ()

    @abstractmethod
    def describe(self, now: float) -> str:
        """Return where a connection that is not ready stands, for an error's text."""

    def lose(self, reason: str, now: float) -> None:
        """Give the engine up."""
        self._end(Move.GONE, EngineDeadError(f"the engine is gone: {reason}"), now)

    def _end(self, move: Move, error: EngineCoreError, now: float) -> None:
        if not self.ended:
            self.error = error
            self._move(move, now)

    def _move(self, move: Move, now: float) -> None:
        state = self.transitions[self.state].get(move)
        if state is not None and (state is not self.state or move is Move.PHASE):
            self.state = state
            self.ended = state in FINAL
            self.works = state in WORKING
            self.since = now


class Opening(NamedTuple):
    """What a new connection starts from: `previous` is the one of the same place before it."""

    link: int
    endpoint: Endpoint
    previous: Connection | None
    now: float


class Transport(ABC):
    """How engines are reached: which places there are, and how each gets a connection."""

    @abstractmethod
    def endpoints(self, addresses: ClientAddresses) -> tuple[Endpoint, ...]:
        """Return the places at which engines are expected."""

    @abstractmethod
    def open(self, opening: Opening) -> Connection:
        """Return a new connection; its sockets are the shell's."""

    @abstractmethod
    def reopen_seconds(self, failures: int) -> float:
        """Return how long after a loss a place is tried again; 0 for at once."""
