"""The few positions of EngineCoreOutputs that the server itself reads.

Frames go on to clients untouched; this decode costs about 0.25 us for one token, a full one
several times that. Positions after the events are skipped by the decoder.
"""

from typing import Any

import msgspec

from enginecore_wire.outputs import SchedulerStats


class OutputHead(msgspec.Struct, array_like=True, gc=False):
    """Whose tokens, how many, whether they were the last, and what happened to the request
    (positions 0, 1, 5 and 7)."""

    request_id: str
    new_token_ids: list[int]
    new_logprobs: Any = None
    new_prompt_logprobs: Any = None
    pooling_output: Any = None
    finish_reason: int | None = None
    stop_reason: Any = None
    events: Any = None


class UtilityHead(msgspec.Struct, array_like=True, gc=False):
    """Which utility call was answered, and the answer for calls of the server's own."""

    call_id: int
    failure_message: str | None = None
    result: Any = None

    @property
    def value(self) -> Any:
        """Return the value of a result `[type_info, value]`, or None."""
        result = self.result
        return result[1] if isinstance(result, list) and len(result) == 2 else None


class OutputsHead(msgspec.Struct, array_like=True, gc=False):
    """One engine message (positions 0 to 4)."""

    engine_index: int
    outputs: list[OutputHead]
    scheduler_stats: SchedulerStats | None = None
    timestamp: float = 0.0
    utility_output: UtilityHead | None = None


def decoder() -> "msgspec.msgpack.Decoder[OutputsHead]":
    """Return a decoder of engine messages."""
    return msgspec.msgpack.Decoder(OutputsHead, ext_hook=_opaque)


def _opaque(_code: int, data: memoryview) -> memoryview:
    return data
