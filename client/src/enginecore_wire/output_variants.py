"""Outputs at the positions of one vLLM release."""

from array import array
from functools import cache
from itertools import chain
from typing import Annotated, Any

import msgspec

from enginecore_wire.dialects import Dialect
from enginecore_wire.outputs import EngineCoreOutput, EngineCoreOutputs, Logprobs, PrefillStats
from enginecore_wire.positions import LOGPROBS_AS_ARRAYS
from enginecore_wire.tensors import Tensor
from enginecore_wire.variants import Take, Variant, optional

_Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]


@cache
def outputs_variant(dialect: Dialect) -> Variant[EngineCoreOutputs]:
    """Return EngineCoreOutputs, and each output in it, as a release has them."""
    types: dict[str, Any] = dict.fromkeys(
        ("num_cached_tokens", "num_external_computed_tokens", "num_nans_in_logits"), int | None
    )
    read: dict[str, Take] = {"num_nans_in_logits": lambda output: output.num_nans_in_logits or 0}
    if "prefill_stats" not in dialect.output:
        read["prefill_stats"] = _prefill_stats
    if dialect.release < LOGPROBS_AS_ARRAYS:
        types["new_logprobs"] = _ListedLogprobs | None
        read["new_logprobs"] = optional("new_logprobs", _as_arrays)
    output = Variant(EngineCoreOutput, dialect.output, required=2, types=types, read=read)
    return Variant(
        EngineCoreOutputs,
        EngineCoreOutputs.__struct_fields__,
        types={"outputs": list[output.wire]},  # type: ignore[name-defined]
        read={"outputs": lambda message: [output.read(item) for item in message.outputs]},
    )


class _ListedLogprobs(msgspec.Struct, array_like=True):
    """Log-probabilities as 0.11.0 sends them: lists of rows and of ranks."""

    token_ids: list[list[_Int32]]
    values: list[list[float]]
    ranks: list[_Int32]


def _as_arrays(listed: _ListedLogprobs) -> Logprobs:
    shape = len(listed.ranks), len(listed.token_ids[0]) if listed.token_ids else 0
    return Logprobs(
        Tensor("<i4", shape, array("i", chain(*listed.token_ids)).tobytes()),
        Tensor("<f4", shape, array("f", chain(*listed.values)).tobytes()),
        Tensor("<i4", shape[:1], array("i", listed.ranks).tobytes()),
    )


def _prefill_stats(output: Any) -> PrefillStats | None:
    cached = output.num_cached_tokens or 0
    external = getattr(output, "num_external_computed_tokens", None) or 0
    if not cached and not external:
        return None
    return PrefillStats(num_cached_tokens=cached, num_external_cached_tokens=external)
