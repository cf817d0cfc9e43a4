"""The fields of vLLM's array-like messages by position, release by release.

A table's entry holds from its release on, up to the next one. Names are those of this package's
types; names these lack were dropped by newer releases.
"""

from collections.abc import Mapping
from typing import Final

from enginecore_wire.layouts import Release
from enginecore_wire.outputs import EngineCoreOutput
from enginecore_wire.requests import EngineCoreRequest, LoRARequest, PoolingParams

Order = tuple[str, ...]


def _words(text: str) -> Order:
    return tuple(text.split())


_HEAD: Final = _words("request_id prompt_token_ids mm_features sampling_params pooling_params")
_MIDDLE: Final = _words(
    "arrival_time lora_request cache_salt data_parallel_rank prompt_embeds client_index "
    "current_wave priority trace_headers"
)

_NEWEST: Final = EngineCoreRequest.__struct_fields__

REQUEST: Final[Mapping[Release, Order]] = {
    (0, 11): (*_HEAD, "eos_token_id", *_MIDDLE),
    (0, 17): (*_HEAD, *_MIDDLE),
    (0, 21): _NEWEST[: _NEWEST.index("session_id")],
    (0, 28): _NEWEST[: _NEWEST.index("kv_hints")],
    (0, 31): _NEWEST,
}
"""ADD; before 0.21 only what a text request fills, up to `trace_headers`: what followed moved
from release to release and may be left out."""

LOGPROBS_AS_ARRAYS: Final[Release] = (0, 11, 1)
"""Log-probabilities of sampled tokens are arrays since this release; before, lists."""

MULTIMODAL: Final[Release] = (0, 16)
"""Multimodal data is a map of arguments since this release; before, it was an array."""

_STABLE: Final = _words(
    "request_id new_token_ids new_logprobs new_prompt_logprobs pooling_output finish_reason "
    "stop_reason events kv_transfer_params"
)

_SINCE_11: Final = "trace_headers num_cached_tokens num_nans_in_logits"
_SINCE_14: Final = "trace_headers num_cached_tokens routed_experts num_nans_in_logits"
_SINCE_16: Final = (
    "trace_headers num_cached_tokens num_external_computed_tokens routed_experts num_nans_in_logits"
)
_SINCE_20: Final = "trace_headers prefill_stats routed_experts num_nans_in_logits"

OUTPUT: Final[Mapping[Release, Order]] = {
    (0, 11): _STABLE + _words(_SINCE_11),
    (0, 14): _STABLE + _words(_SINCE_14),
    (0, 16): _STABLE + _words(_SINCE_16),
    (0, 20): _STABLE + _words(_SINCE_20),
    (0, 26): EngineCoreOutput.__struct_fields__,
}
"""EngineCoreOutput: nine stable positions, then what each release had. Since 0.26 it only grew."""


_ADAPTER: Final = _words("lora_name lora_int_id lora_path")
_TENSORIZER: Final = (*_ADAPTER, "base_model_name", "tensorizer_config_dict")

LORA: Final[Mapping[Release, Order]] = {
    (0, 11): (
        *_ADAPTER,
        *_words("lora_local_path long_lora_max_len base_model_name tensorizer_config_dict"),
    ),
    (0, 14): _TENSORIZER,
    (0, 15): (*_TENSORIZER, "load_inplace"),
    (0, 22): (*_TENSORIZER, "load_inplace", "is_3d_lora_weight"),
    (0, 32): LoRARequest.__struct_fields__,
}
"""LoRARequest."""

_POOLING: Final = PoolingParams.__struct_fields__
_UP_TO_16: Final = tuple(field for field in _POOLING if field != "late_interaction_params")

POOLING: Final[Mapping[Release, Order]] = {
    (0, 11): _words(
        "truncate_prompt_tokens dimensions normalize use_activation softmax step_tag_id "
        "returned_token_ids task requires_token_ids extra_kwargs output_kind"
    ),
    (0, 11, 1): _words(
        "truncate_prompt_tokens dimensions normalize softmax activation use_activation step_tag_id "
        "returned_token_ids task requires_token_ids skip_reading_prefix_cache extra_kwargs "
        "output_kind"
    ),
    (0, 16): ("truncate_prompt_tokens", *_UP_TO_16),
    (0, 17): _UP_TO_16,
    (0, 18): _POOLING,
}
"""PoolingParams; 0.11.0 calls `use_activation` just `activation`."""


def at(table: Mapping[Release, Order], release: Release) -> Order:
    """Return the positions that hold in `release`."""
    return table[max(start for start in table if start <= release)]
