"""Who is connected, which slot they have, and whose every unfinished request is.

Books only: no sockets, no clock of their own. A session is a routing id with a nonce
(docs/protocol.md, "Sessions").
"""

from collections import OrderedDict, deque
from enum import Enum
from typing import Any, Final, NamedTuple

from enginecore_server.replay import SentMessages
from enginecore_wire.utility import Role

_ENDED_KEPT: Final = 4096
_PENDING_KEPT: Final = 4096


class Side(Enum):
    """One of the two exposed sockets."""

    INPUT = "input"
    OUTPUT = "output"


class Greeting(Enum):
    """What a HELLO led to."""

    INCOMPLETE = "incomplete"
    OPENED = "opened"
    REPEATED = "repeated"
    CONFLICT = "conflict"
    ENDED = "ended"
    FULL = "full"


class Holder(NamedTuple):
    """Whose a connection is: its public key ("" without CURVE) and what that allows."""

    key: str
    role: Role


ANYBODY: Final = Holder("", Role.ADMIN)
"""Who connects where there are no keys."""


class Request:
    """One unfinished request; times are monotonic seconds, 0.0 before they are known."""

    __slots__ = (
        "arrived",
        "first_at",
        "last_at",
        "prompt_tokens",
        "queued_at",
        "request_id",
        "scheduled_at",
        "session",
    )

    def __init__(
        self, request_id: str, session: "Session", prompt_tokens: int, arrived: float
    ) -> None:
        self.request_id = request_id
        self.session = session
        self.prompt_tokens = prompt_tokens
        self.arrived = arrived
        self.queued_at = 0.0
        self.scheduled_at = 0.0
        self.first_at = 0.0
        self.last_at = 0.0


class Session:
    """One client: its slot, its unfinished work, and messages that wait for its connection.

    `outputs_sent` counts engine messages; `broken_at` is when its first connection broke; `ended`
    says that it was given up. `held` says that nothing may be sent until HELLO comes on the output
    socket: whoever is connected there under the routing id has not shown its key. `replayed_bytes`
    is how much of the backlog at most it has had before.
    """

    __slots__ = (
        "backlog",
        "backlog_bytes",
        "broken_at",
        "calls",
        "ended",
        "fds",
        "held",
        "identity",
        "key",
        "name",
        "nonce",
        "outputs_sent",
        "protocol",
        "replayed_bytes",
        "requests",
        "role",
        "sent",
        "slot",
    )

    def __init__(
        self, identity: bytes, nonce: bytes, name: str, slot: int, protocol: int, holder: Holder
    ) -> None:
        self.identity = identity
        self.nonce = nonce
        self.name = name
        self.slot = slot
        self.protocol = protocol
        self.key = holder.key
        self.role = holder.role
        self.requests: dict[str, Request] = {}
        self.calls: set[int] = set()
        self.outputs_sent = 0
        self.fds: dict[Side, int | None] = {}
        self.broken_at: float | None = None
        self.ended = False
        self.held = False
        self.backlog: deque[list[Any]] = deque()
        self.backlog_bytes = 0
        self.replayed_bytes = 0
        self.sent = SentMessages()

    @property
    def connected(self) -> bool:
        """Whether both connections stand, as far as is known."""
        return None not in self.fds.values()

    def broke(self, side: Side, now: float) -> None:
        """Note that its connection on `side` is gone."""
        self.fds[side] = None
        self.held = self.held or side is Side.OUTPUT
        if self.broken_at is None:
            self.broken_at = now


class SessionBook:
    """All sessions of the pod. Slots count from 1; slot 0 is the server's own.

    Args:
        max_clients: sessions at one time.
    """

    def __init__(self, max_clients: int) -> None:
        self.requests: dict[str, Request] = {}
        self._sessions: dict[bytes, Session] = {}
        self._by_slot: dict[int, Session] = {}
        self._free = deque(range(1, max_clients + 1))
        self._pending: OrderedDict[bytes, tuple[bytes, str, dict[Side, int]]] = OrderedDict()
        self._ended: OrderedDict[tuple[bytes, bytes], None] = OrderedDict()
        self._owners: dict[tuple[Side, int], bytes] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def sessions(self) -> list[Session]:
        """Return all sessions, oldest first."""
        return list(self._sessions.values())

    def find(self, identity: bytes) -> Session | None:
        """Return the session of a routing id."""
        return self._sessions.get(identity)

    def at_slot(self, slot: int) -> Session | None:
        """Return the session that owns a slot."""
        return self._by_slot.get(slot)

    def hello(
        self,
        side: Side,
        identity: bytes,
        nonce: bytes,
        name: str,
        fd: int,
        protocol: int,
        holder: Holder = ANYBODY,
    ) -> Greeting:
        """Take a HELLO that came on `side` over the connection `fd` of `holder`, who is the owner
        of the session if there is one."""
        session = self._sessions.get(identity)
        if (identity, nonce) in self._ended:
            return Greeting.ENDED
        if session is not None:
            if session.nonce != nonce:
                return Greeting.CONFLICT
            self._owners[side, fd] = identity
            session.fds[side] = fd
            session.held = session.held and side is not Side.OUTPUT
            if not session.connected:
                return Greeting.INCOMPLETE
            session.broken_at = None
            return Greeting.REPEATED
        self._owners[side, fd] = identity
        known_nonce, known_key, sides = self._pending.get(identity, (nonce, holder.key, {}))
        if (known_nonce, known_key) != (nonce, holder.key):
            sides = {}
        sides[side] = fd
        self._pending[identity] = (nonce, holder.key, sides)
        if len(self._pending) > _PENDING_KEPT:
            self._pending.popitem(last=False)
        if len(sides) < len(Side):
            return Greeting.INCOMPLETE
        if not self._free:
            return Greeting.FULL
        del self._pending[identity]
        session = Session(identity, nonce, name, self._free.popleft(), protocol, holder)
        session.fds.update(sides)
        self._sessions[identity] = session
        self._by_slot[session.slot] = session
        return Greeting.OPENED

    def knows(self, side: Side, fd: int) -> bool:
        """Say whether a connection has said HELLO."""
        return (side, fd) in self._owners

    def disconnected(self, side: Side, fd: int, now: float) -> Session | None:
        """Note that a connection broke; return the session that it belonged to, if any."""
        identity = self._owners.pop((side, fd), None)
        if identity is None:
            return None
        pending = self._pending.get(identity)
        if pending is not None and pending[2].get(side) == fd:
            del self._pending[identity]
        session = self._sessions.get(identity)
        if session is None or session.fds.get(side) != fd:
            return None
        session.broke(side, now)
        return session

    def expired(self, now: float, grace_seconds: float) -> list[Session]:
        """Return the sessions whose connections have been broken for the grace time."""
        return [
            session
            for session in self._sessions.values()
            if session.broken_at is not None and now - session.broken_at >= grace_seconds
        ]

    def end(self, session: Session) -> list[str]:
        """Forget a session and return the ids of its unfinished requests.

        Its slot stays taken until `release_slot`; its routing id and nonce stay refused. Nothing
        waits for its connections any more: they are not followed from here on, so what is queued
        would be tried for ever.
        """
        session.ended = True
        del self._sessions[session.identity]
        del self._by_slot[session.slot]
        self._ended[session.identity, session.nonce] = None
        if len(self._ended) > _ENDED_KEPT:
            self._ended.popitem(last=False)
        session.fds = dict.fromkeys(session.fds)
        session.backlog.clear()
        session.backlog_bytes = 0
        ids = list(session.requests)
        self.forget(session, ids)
        return ids

    def release_slot(self, slot: int) -> None:
        """Let the slot be given to the next client."""
        self._free.append(slot)

    def add(self, session: Session, request_id: str, prompt_tokens: int, now: float) -> Request:
        """Note a request that goes to the engine; its id must be free."""
        request = Request(request_id, session, prompt_tokens, now)
        self.requests[request_id] = session.requests[request_id] = request
        return request

    def owned(self, session: Session, ids: list[str]) -> list[str]:
        """Return those of `ids` that are unfinished requests of this session, once each."""
        return [request_id for request_id in dict.fromkeys(ids) if request_id in session.requests]

    def forget(self, session: Session, ids: list[str]) -> None:
        """Strike requests of a session that will bring no more output."""
        for request_id in ids:
            del session.requests[request_id]
            del self.requests[request_id]
