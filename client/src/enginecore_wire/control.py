"""This project's control messages (docs/protocol.md): maps that travel beside vLLM's own."""

from enum import StrEnum
from typing import Any, Final

import msgspec

from enginecore_wire.outputs import SchedulerStats
from enginecore_wire.version import LAYOUTS, PROTOCOL_MINIMUM, PROTOCOL_VERSION

DEFAULT_MAX_LOGPROBS: Final = 20
"""How many log-probabilities engines give at most, unless told otherwise; vLLM's default."""


class Phase(StrEnum):
    """Where an engine process is in its life."""

    STARTING = "Starting"
    HANDSHAKING = "Handshaking"
    LOADING = "Loading"
    READY = "Ready"
    DRAINING = "Draining"
    STOPPED = "Stopped"
    FAILED = "Failed"


class RejectCode(StrEnum):
    """Why a message was refused."""

    INVALID_REQUEST = "invalid_request"
    DUPLICATE_REQUEST_ID = "duplicate_request_id"
    TOO_LARGE = "too_large"
    UNKNOWN_METHOD = "unknown_method"
    NOT_PERMITTED = "not_permitted"
    UNKNOWN_TYPE = "unknown_type"
    PROTOCOL_MISMATCH = "protocol_mismatch"
    OVERLOADED = "overloaded"
    DRAINING = "draining"
    NOT_READY = "not_ready"
    TOO_MANY_CLIENTS = "too_many_clients"


RETRYABLE: Final = frozenset(
    {RejectCode.OVERLOADED, RejectCode.DRAINING, RejectCode.NOT_READY, RejectCode.TOO_MANY_CLIENTS}
)
"""Codes after which the same message may succeed elsewhere or later."""


class Hello(msgspec.Struct, frozen=True):
    """Client to pod on both sockets: who is there and what it speaks. `nonce` has 8 bytes.

    `received` counts the engine messages of this session that came so far; -1 where none is to be
    sent again.
    """

    protocol: int = PROTOCOL_VERSION
    protocol_minimum: int = PROTOCOL_MINIMUM
    nonce: bytes = b""
    name: str = ""
    layouts: tuple[str, ...] = LAYOUTS
    received: int = -1


class Limits(msgspec.Struct, frozen=True):
    """What a pod accepts: bytes per frame, unfinished requests per client and of all clients
    together, prompt tokens."""

    frame_bytes: int = 256 << 20
    in_flight: int = 1024
    in_flight_total: int = 16384
    prompt_tokens: int = 0


class Timers(msgspec.Struct, frozen=True):
    """The pod's timers, in seconds."""

    ping_seconds: float = 1.0
    lost_after_seconds: float = 4.0
    grace_seconds: float = 5.0
    step_deadline_seconds: float = 60.0
    drain_deadline_seconds: float = 60.0


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """Pod to client: the session stands and the engine works."""

    protocol: int = PROTOCOL_VERSION
    layout: str = "C"
    name: str = ""
    rank: int = 0
    epoch: int = 0
    slot: int = 0
    nonce: bytes = b""
    live_clients: int = 1
    outputs_sent: int = 0
    requests: list[str] = []
    calls: list[int] | None = None
    engine: dict[str, Any] = {}
    vocab_size: int = 0
    hidden_size: int = 0
    modalities: tuple[str, ...] = ()
    max_logprobs: int = DEFAULT_MAX_LOGPROBS
    model_name: str = ""
    runtime: str = ""
    runtime_version: str = ""
    limits: Limits = Limits()
    timers: Timers = Timers()


class Ping(msgspec.Struct, frozen=True):
    """Client to pod: are you there?"""

    sequence: int = 0


class Pong(msgspec.Struct, frozen=True, kw_only=True):
    """Pod to client: here, and this many engine messages were sent to you."""

    sequence: int = 0
    nonce: bytes = b""
    epoch: int = 0
    outputs_sent: int = 0
    live_clients: int = 1


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """Pod to every client: the scheduler's state. `timestamp` is the engine's monotonic clock."""

    engine_index: int = 0
    timestamp: float = 0.0
    scheduler_stats: SchedulerStats = msgspec.field(default_factory=SchedulerStats)


class Draining(msgspec.Struct, frozen=True):
    """Pod to client: no new requests; running streams may go on for `deadline_seconds`."""

    reason: str = ""
    deadline_seconds: float = 0.0


class Replaced(msgspec.Struct, frozen=True):
    """Pod to client: this routing id is not yours; close the pair."""

    reason: str = ""


class Unknown(msgspec.Struct, frozen=True):
    """Pod to client: say HELLO first; the message of type `type` was not processed."""

    type: int = 0


class Reject(msgspec.Struct, frozen=True, kw_only=True):
    """Pod to client: one request, call or HELLO was refused.

    `code` is a RejectCode, or a code of a newer pod.
    """

    code: str = ""
    message: str = ""
    field: str = ""
    request_id: str | None = None
    call_id: int | None = None


class Bye(msgspec.Struct, frozen=True):
    """Client to pod: the session ends now."""


class PhaseChange(msgspec.Struct, frozen=True):
    """Pod to client: the engine is not ready; `since_seconds` is the time spent in the phase."""

    phase: str = Phase.STARTING
    reason: str = ""
    since_seconds: float = 0.0


ControlMessage = (
    Hello | Ready | Ping | Pong | Stats | Draining | Replaced | Unknown | Reject | Bye | PhaseChange
)

CONTROL_TYPES: Final[dict[int, type[Any]]] = {
    0x80: Hello,
    0x81: Ready,
    0x82: Ping,
    0x83: Pong,
    0x84: Stats,
    0x85: Draining,
    0x86: Replaced,
    0x87: Unknown,
    0x88: Reject,
    0x89: Bye,
    0x8A: PhaseChange,
}
"""The type byte of each control message."""
