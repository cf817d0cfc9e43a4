"""Engine to front end: EngineCoreOutputs and everything inside it (layout C of vLLM 0.32).

Every field past the required ones has a default, so shorter arrays of older engines decode;
longer arrays of newer ones do too, because msgspec drops surplus positions.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import msgspec

from enginecore_wire.tensors import Tensor

ENGINE_CORE_DEAD = b"ENGINE_CORE_DEAD"
"""The single frame an engine sends to every output when its loop has died."""


def is_last_word(frames: Sequence[bytes | memoryview]) -> bool:
    """Say whether a message is the last one of an engine whose loop has died."""
    return len(frames) == 1 and frames[0] == ENGINE_CORE_DEAD


class FinishReason(IntEnum):
    """Why a request ended."""

    STOP = 0
    LENGTH = 1
    ABORT = 2
    ERROR = 3
    REPETITION = 4


class EventType(IntEnum):
    """What happened to a request inside the engine."""

    QUEUED = 1
    SCHEDULED = 2
    PREEMPTED = 3


class EngineCoreEvent(msgspec.Struct):
    """One event of a request; `timestamp` is the engine's monotonic clock in seconds."""

    type: EventType
    timestamp: float


class TokenLogprob(NamedTuple):
    """Log-probabilities at one position.

    `token_id` is the token there, `rank` its place among all tokens (1 = most likely). `others`
    are the tokens that were asked for, with their log-probabilities; the most likely come first,
    and the token itself may be among them.
    """

    token_id: int
    logprob: float
    rank: int
    others: list[tuple[int, float]]


class Logprobs(msgspec.Struct, array_like=True):
    """Log-probabilities of sampled positions; `positions()` has them as plain numbers.

    `token_ids` and `values` have shape [positions, k + 1] (the sampled token first),
    `ranks` has shape [positions] (1 = most likely). vLLM takes numpy's dtypes here (`<i4`).
    """

    token_ids: Tensor
    values: Tensor
    ranks: Tensor
    cumulative: list[int] | None = None

    def positions(self) -> list[TokenLogprob]:
        """Return what is known of each position, in order.

        Raises:
            ValueError: the arrays are not of the shapes above.
            TypeError: they hold no numbers that Python has.
        """
        shape = self.token_ids.shape
        if len(shape) != 2 or self.values.shape != shape or self.ranks.shape != shape[:1]:
            raise ValueError(
                f"log-probabilities of shapes {shape}, {self.values.shape}, {self.ranks.shape}; "
                "they should be [positions, k + 1], the same, and [positions]"
            )
        rows = zip(self.token_ids.tolist(), self.values.tolist(), self.ranks.tolist(), strict=True)
        return [
            TokenLogprob(ids[0], values[0], rank, list(zip(ids[1:], values[1:], strict=True)))
            for ids, values, rank in rows
        ]


class PromptLogprobs(Logprobs):
    """Log-probabilities of the prompt's positions but the first; one message has them all.

    The shapes are those of Logprobs. vLLM takes torch's dtypes here (`int64`).
    """

    cumulative_tensor: Tensor | None = None


class SamplingMask(msgspec.Struct, array_like=True):
    """The tokens sampling chose from; `offsets` has the bounds of each position in
    `token_ids`, None for one position."""

    token_ids: Tensor
    offsets: Tensor | None = None
    cumulative: list[int] | None = None


class PrefillStats(msgspec.Struct):
    """Where a prompt's tokens came from; counts of tokens."""

    num_prompt_tokens: int = 0
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    num_local_cached_tokens: int = 0
    num_external_cached_tokens: int = 0
    num_cache_creation_tokens: int = 0


class EngineCoreOutput(msgspec.Struct, array_like=True, gc=False):
    """New tokens of one request; the request is finished iff `finish_reason` is set.

    Nothing in it refers back to it, so the garbage collector does not follow it: outputs are what
    a client makes most of.

    Clients set `index` and `text` in a type derived from this one; on the wire there is neither.
    """

    request_id: str
    new_token_ids: list[int]
    new_logprobs: Logprobs | None = None
    new_prompt_logprobs: PromptLogprobs | None = None
    pooling_output: Tensor | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    events: list[EngineCoreEvent] | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None
    trace_headers: dict[str, str] | None = None
    prefill_stats: PrefillStats | None = None
    routed_experts: Tensor | None = None
    num_nans_in_logits: int = 0
    mm_cache_miss_hashes: list[str] | None = None
    new_sampling_mask: SamplingMask | None = None
    spec_decode_metrics: dict[str, Any] | None = None
    prompt_token_id_logprobs: Tensor | None = None

    @property
    def index(self) -> int:
        """Return which sequence of its request this belongs to."""
        return 0

    @property
    def text(self) -> str:
        """Return the text of the tokens; "" where nobody made one."""
        return ""


class UtilityResult(msgspec.Struct, array_like=True):
    """A utility call's value; `type_info` describes pickled types and is ignored here."""

    type_info: Any
    value: Any


class UtilityOutput(msgspec.Struct, array_like=True):
    """The reply to one utility call: either `failure_message` or `result` is set."""

    call_id: int
    failure_message: str | None = None
    result: UtilityResult | None = None


class PrefixCacheStats(msgspec.Struct):
    """Prefix cache use since the previous stats; `queries` and `hits` count tokens."""

    reset: bool = False
    requests: int = 0
    queries: int = 0
    hits: int = 0
    preempted_requests: int = 0
    preempted_queries: int = 0
    preempted_hits: int = 0
    hits_by_source: dict[str, int] = {}


class SchedulerStats(msgspec.Struct):
    """The scheduler's state after a step; `kv_cache_usage` is a share between 0 and 1.

    Parts that only one optional feature of the engine fills stay plain maps.
    """

    num_running_reqs: int = 0
    num_waiting_reqs: int = 0
    num_skipped_waiting_reqs: int = 0
    num_kv_fetch_reqs_by_stage: dict[str, int] = {}
    step_counter: int = 0
    current_wave: int = 0
    kv_cache_usage: float = 0.0
    iteration_details: dict[str, Any] | None = None
    prefix_cache_stats: PrefixCacheStats = msgspec.field(default_factory=PrefixCacheStats)
    connector_prefix_cache_stats: PrefixCacheStats | None = None
    kv_cache_eviction_events: list[dict[str, Any]] = []
    spec_decoding_stats: dict[str, Any] | None = None
    kv_connector_stats: dict[str, Any] | None = None
    ec_connector_stats: dict[str, Any] | None = None
    waiting_lora_adapters: dict[str, int] = {}
    running_lora_adapters: dict[str, int] = {}
    cudagraph_stats: dict[str, Any] | None = None
    perf_stats: dict[str, Any] | None = None


class EngineCoreOutputs(msgspec.Struct, array_like=True, gc=False):
    """All that one engine step has for one client.

    `timestamp` is the engine's monotonic clock in seconds, 0.0 if it sent none.
    """

    engine_index: int = 0
    outputs: list[EngineCoreOutput] = []
    scheduler_stats: SchedulerStats | None = None
    timestamp: float = 0.0
    utility_output: UtilityOutput | None = None
    finished_requests: list[str] | None = None
    wave_complete: int | None = None
    start_wave: int | None = None
    weight_version: str | None = None
