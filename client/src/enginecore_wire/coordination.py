"""What the coordinator publishes and what clients send it (vLLM's shape, docs/protocol.md)."""

from typing import Final, NamedTuple

import msgspec

LAST_WAVE: Final = 2**31 - 1
"""What a request can carry; a higher wave, or a negative one, is no wave."""


class EngineLoad(NamedTuple):
    """Load of one rank; `kv_usage` is a share between 0 and 1."""

    waiting: int
    running: int
    kv_usage: float


class LoadReport(msgspec.Struct, array_like=True, frozen=True):
    """Load of all ranks (index = rank), the wave, and whether lockstep engines run.

    `loads` is None when only the wave changed, and while no rank is known.
    """

    loads: list[EngineLoad] | None
    wave: int = 0
    running: bool = False


class FirstRequest(msgspec.Struct, array_like=True, frozen=True):
    """Client to coordinator: a request was sent to rank `exclude` while engines paused in
    `wave`. vLLM's client sends the rank as its 2-byte identity."""

    exclude: int | bytes | None
    wave: int


class CoordinatorAddresses(msgspec.Struct, frozen=True):
    """Where the coordinator of engines that dial it is bound.

    `input` is where engines subscribe, `output` where they push, `stats_publish` where clients
    subscribe.
    """

    input: str
    output: str
    stats_publish: str
