"""What the core tells the shell: things that happened, and things to do."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from enginecore_client._addresses.addresses import Endpoint
from enginecore_client._core.books import CallRecord, RequestRecord
from enginecore_client.errors import EngineCoreError
from enginecore_wire.control import Ready
from enginecore_wire.coordination import EngineLoad
from enginecore_wire.frames import Frame
from enginecore_wire.outputs import EngineCoreOutput, EngineCoreOutputs, SchedulerStats


class Open(NamedTuple):
    """Open a pair of sockets to an engine; `attempt` counts the pairs to this address before."""

    link: int
    endpoint: Endpoint
    routing_id: bytes
    attempt: int


class Close(NamedTuple):
    """Close a pair of sockets; `farewell` says BYE first, and before it `last_frames`, if any."""

    link: int
    farewell: bool
    last_frames: Sequence[Frame] = ()


class Subscribe(NamedTuple):
    """Take load reports from this coordinator from now on (None: from nobody); `server_key` is its
    public key, "" without CURVE."""

    address: str | None
    attempt: int = 0
    server_key: str = ""


class Announce(NamedTuple):
    """Send a message to the coordinator."""

    message: bytes


class Delivered(NamedTuple):
    """One message of an engine.

    `outputs` are all its outputs, with their callers' ids, and `records` the request of each.
    `queued` is the message with those outputs that belong to get_output, or None when there are
    none. `at` is when it came.
    """

    engine: int
    records: list[RequestRecord]
    outputs: list[EngineCoreOutput]
    queued: EngineCoreOutputs | None
    at: float


class RequestAdded(NamedTuple):
    """A request was accepted for sending to an engine."""

    engine: int
    record: RequestRecord


class RequestSetAside(NamedTuple):
    """A request left its engine without a token and will be sent again."""

    engine: int


class RequestEnded(NamedTuple):
    """A request ended without a last output; `error` is None when the caller aborted it."""

    engine: int | None
    record: RequestRecord
    error: EngineCoreError | None


class Reported(NamedTuple):
    """An error that get_output raises."""

    error: EngineCoreError


class CallEnded(NamedTuple):
    """A utility call has its value or its error."""

    record: CallRecord
    value: Any
    error: EngineCoreError | None


class StatsUpdate(NamedTuple):
    """An engine's scheduler state became known."""

    engine: int
    stats: SchedulerStats


class LoadKnown(NamedTuple):
    """What an engine is chosen by from now on: what it, or the coordinator, reported last."""

    engine: int
    load: EngineLoad


class LoadsMissed(NamedTuple):
    """No report has come for so many seconds from the coordinator that is said to be there."""

    address: str
    seconds: float


class RankTaken(NamedTuple):
    """An engine says that it has a rank which another one has; it is known by a free one."""

    engine: int
    claimed: int
    address: str


class EngineUp(NamedTuple):
    """An engine is ready, for the first time on its connection."""

    engine: int
    ready: Ready


class EngineDown(NamedTuple):
    """An engine was lost and no other serves its rank; it is tried again as long as it has an
    address."""

    engine: int
    error: EngineCoreError


class EngineLost(NamedTuple):
    """An engine's process or connection ended before its work had; another one may serve its rank
    already. The end of a drained engine is no loss."""

    engine: int
    error: EngineCoreError


class EngineAway(NamedTuple):
    """A rank's engine takes nothing new because its address is gone, and no other serves the rank
    yet."""

    engine: int


class EngineRemoved(NamedTuple):
    """An engine is no longer among the addresses, and nothing of it is left."""

    engine: int


Action = Open | Close | Subscribe | Announce
Event = (
    Delivered
    | RequestAdded
    | RequestEnded
    | RequestSetAside
    | Reported
    | CallEnded
    | StatsUpdate
    | LoadKnown
    | LoadsMissed
    | RankTaken
    | EngineUp
    | EngineDown
    | EngineLost
    | EngineAway
    | EngineRemoved
)
