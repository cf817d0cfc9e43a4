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

REQUEST: Final[Mapping[Release, Order]] = {
    (0, 11): (*_HEAD, "eos_token_id", *_MIDDLE),
    (0, 17): (*_HEAD, *_MIDDLE),
    (0, 21): EngineCoreRequest.__struct_fields__,
}
"""ADD; before 0.21 only what a text request fills, up to `trace_headers`: what followed moved
from release to release and may be left out."""

_STABLE: Final = _words(
    "request_id new_token_ids new_logprobs new_prompt_logprobs pooling_output finish_reason "
    "stop_reason events kv_transfer_params"
)

OUTPUT: Final[Mapping[Release, Order]] = {
    release: _STABLE + _words(rest)
    for release, rest in {
        (0, 11): "trace_headers num_cached_tokens",
        (0, 12): "trace_headers num_cached_tokens num_nans_in_logits",
        (0, 14): "trace_headers num_cached_tokens routed_experts num_nans_in_logits",
        (0, 16): "trace_headers num_cached_tokens num_external_computed_tokens routed_experts "
        "num_nans_in_logits",
        (0, 20): "trace_headers prefill_stats routed_experts num_nans_in_logits",
    }.items()
} | {(0, 26): EngineCoreOutput.__struct_fields__}
"""EngineCoreOutput: nine stable positions, then what each release had. Since 0.26 it only grew."""


_ADAPTER: Final = _words("lora_name lora_int_id lora_path")
_SINCE_14: Final = (*_ADAPTER, *_words("base_model_name tensorizer_config_dict"))

LORA: Final[Mapping[Release, Order]] = {
    (0, 11): (
        *_ADAPTER,
        *_words("lora_local_path long_lora_max_len base_model_name tensorizer_config_dict"),
    ),
    (0, 14): _SINCE_14,
    (0, 15): (*_SINCE_14, "load_inplace"),
    (0, 22): (*_SINCE_14, "load_inplace", "is_3d_lora_weight"),
    (0, 32): LoRARequest.__struct_fields__,
}
"""LoRARequest."""

POOLING: Final[Mapping[Release, Order]] = {(0, 18): PoolingParams.__struct_fields__}
"""PoolingParams."""


def at(table: Mapping[Release, Order], release: Release) -> Order:
    """Return the positions that hold in `release`; none if the table begins later."""
    begun = [start for start in table if start <= release]
    return table[max(begun)] if begun else ()
