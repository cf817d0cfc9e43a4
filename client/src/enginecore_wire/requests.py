"""Front end to engine: EngineCoreRequest and everything inside it (layout C).

Field order is the wire format: array-like structs are encoded by position, so fields are
only ever appended, never inserted, reordered or dropped.
"""

from enum import IntEnum
from typing import Any

import msgspec

from enginecore_wire.multimodal import MultiModalFeatureSpec
from enginecore_wire.tensors import Tensor


class RequestType:
    """The one-byte frame before a request body."""

    ADD = b"\x00"
    ABORT = b"\x01"
    START_DP_WAVE = b"\x02"
    UTILITY = b"\x03"


class OutputKind(IntEnum):
    """How much of the output each message to the caller holds."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


class StructuredOutputs(msgspec.Struct, omit_defaults=True):
    """A constraint on the generated text; exactly one of the first six is set.

    `backend` names the grammar library on the engine's side; an engine refuses a
    constraint without one.
    """

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    backend: str | None = msgspec.field(name="_backend", default=None)
    backend_was_auto: bool = msgspec.field(name="_backend_was_auto", default=False)


class RepetitionDetection(msgspec.Struct, omit_defaults=True):
    """Ends a request whose last tokens are one pattern repeated.

    A pattern has `min_pattern_size` to `max_pattern_size` tokens (0 switches the check
    off) and counts once it was repeated `min_count` times.
    """

    max_pattern_size: int = 0
    min_pattern_size: int = 0
    min_count: int = 0


class SamplingParams(msgspec.Struct, omit_defaults=True, kw_only=True, gc=False):
    """How tokens are chosen and when a request ends; a map with its non-default keys only.

    The engine has no tokenizer: it stops at the end-of-sequence token only if
    `eos_token_id` is sent, and honours `min_tokens` only for `all_stop_token_ids`.
    Stop strings and n > 1 are the front end's work. `max_tokens` may not be None on
    the way to an engine.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    watermarking: bool | None = None
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    prompt_logprob_token_ids: Tensor | None = None
    prompt_logprob_start: int | None = None
    logprob_token_ids: list[int] | None = None
    flat_logprobs: bool = False
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: OutputKind = OutputKind.CUMULATIVE
    stream_interval: int | None = None
    skip_clone: bool = False
    output_text_buffer_length: int = 0
    structured_outputs: StructuredOutputs | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    extra_args: dict[str, Any] | None = None
    bad_words: list[str] | None = None
    skip_reading_prefix_cache: bool | None = None
    thinking_token_budget: int | None = None
    repetition_detection: RepetitionDetection | None = None
    routed_experts_prompt_start: int = 0
    trace_decode_token_ids: list[int] | None = None
    eos_token_id: int | None = msgspec.field(name="_eos_token_id", default=None)
    all_stop_token_ids: list[int] = msgspec.field(name="_all_stop_token_ids", default_factory=list)
    watermarking_skipped: bool = msgspec.field(name="_watermarking_skipped", default=False)
    bad_words_token_ids: list[list[int]] | None = msgspec.field(
        name="_bad_words_token_ids", default=None
    )


class LateInteraction(msgspec.Struct, array_like=True):
    """Scores documents against a query the worker keeps; `mode` is `cache_query` or
    `score_doc`."""

    mode: str
    query_key: str
    query_uses: int | None = None


class PoolingParams(msgspec.Struct, array_like=True):
    """What a pooling request returns; all positions are encoded."""

    use_activation: bool | None = None
    dimensions: int | None = None
    step_tag_id: int | None = None
    returned_token_ids: list[int] | None = None
    task: str | None = None
    requires_token_ids: bool = False
    skip_reading_prefix_cache: bool | None = None
    late_interaction_params: LateInteraction | None = None
    extra_kwargs: dict[str, Any] | None = None
    output_kind: OutputKind = OutputKind.FINAL_ONLY


class LoRARequest(msgspec.Struct, array_like=True):
    """An adapter to apply; `lora_int_id` counts from 1."""

    lora_name: str
    lora_int_id: int
    lora_path: str
    base_model_name: str | None = None
    load_inplace: bool = False
    is_3d_lora_weight: bool = False


class KvHintAction(msgspec.Struct):
    """One hint; `payload` is plain data its `action_type` defines."""

    action_id: str
    action_type: str
    action_version: str
    payload: dict[str, Any]


class KvHints(msgspec.Struct):
    """Hints to the engine's KV cache that ride along with a request."""

    protocol_version: str
    message_id: str
    actions: list[KvHintAction]


class EngineCoreRequest(msgspec.Struct, array_like=True, gc=False):
    """One generation (or pooling) request: the body of ADD, 22 positions in layout C.

    Engines need exactly one of `sampling_params` and `pooling_params`, and ids that are
    unique among their unfinished requests. `arrival_time` is wall-clock seconds.
    `client_index` names the output socket; the engine server overwrites it. vLLM's decoder
    insists on the first nine positions.
    """

    request_id: str
    prompt_token_ids: list[int] | None
    mm_features: list[MultiModalFeatureSpec] | None = None
    sampling_params: SamplingParams | None = None
    pooling_params: PoolingParams | None = None
    arrival_time: float = 0.0
    lora_request: LoRARequest | None = None
    cache_salt: str | None = None
    data_parallel_rank: int | None = None
    prompt_embeds: Tensor | None = None
    prompt_is_token_ids: list[bool] | None = None
    client_index: int = 0
    current_wave: int = 0
    priority: int = 0
    trace_headers: dict[str, str] | None = None
    resumable: bool = False
    external_req_id: str | None = None
    reasoning_ended: bool | None = None
    reasoning_parser_kwargs: dict[str, Any] | None = None
    abort_immediately: bool = False
    session_id: str | None = None
    kv_hints: KvHints | None = None


class UtilityCall(msgspec.Struct, array_like=True):
    """The body of UTILITY: a method of the engine called by name, positional arguments only.

    `call_id` is an unsigned 64-bit number that the reply repeats.
    """

    client_index: int
    call_id: int
    method: str
    args: list[Any]
