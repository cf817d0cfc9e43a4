"""Codecs between this package's types and the positions of one vLLM release.

Where an engine's positions are those of this package's types, these are the plain codecs.
"""

from array import array
from collections.abc import Sequence
from functools import cache
from itertools import chain
from typing import Annotated, Any, Final, TypeVar

import msgspec

from enginecore_wire.codec import Buffer, MsgpackDecoder, MsgpackEncoder, free_values
from enginecore_wire.dialects import NATIVE, Dialect
from enginecore_wire.outputs import EngineCoreOutput, EngineCoreOutputs, Logprobs, PrefillStats
from enginecore_wire.plain import refuse_extensions
from enginecore_wire.positions import LOGPROBS_AS_ARRAYS, MULTIMODAL, Order
from enginecore_wire.requests import (
    EngineCoreRequest,
    LoRARequest,
    PoolingParams,
    SamplingParams,
    UtilityCall,
)
from enginecore_wire.tensors import Tensor
from enginecore_wire.variants import Take, Variant

T = TypeVar("T", bound=msgspec.Struct)

_Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]

EMBEDDING_TASKS: Final = frozenset({"embed", "token_embed"})

_NOT_MISSED: Final = frozenset({"external_req_id"})
"""Fields that an engine only repeats in its own log; leaving them out changes nothing."""


def request_encoder(dialect: Dialect = NATIVE) -> MsgpackEncoder:
    """Return the encoder of what goes to an engine: requests, calls, ids to abort.

    With another dialect than the newest, `encode` raises ValueError for a request with a field
    that the engine's release has no place for (see `not_carried`).
    """
    return MsgpackEncoder() if same_requests(dialect) else _RequestEncoder(dialect)


def request_decoder(
    dialect: Dialect = NATIVE, vocab_size: int | None = None
) -> MsgpackDecoder[EngineCoreRequest]:
    """Return the decoder of ADD bodies.

    Args:
        dialect: how they are written.
        vocab_size: if given, prompt token ids are held to 0 … `vocab_size` - 1, as part of
            the typed decode, which costs nothing extra.
    """
    return _Translated(_request_variant(dialect, vocab_size))


def request_type(dialect: Dialect = NATIVE) -> type[Any]:
    """Return the type ADD bodies are decoded as: its fields name the positions."""
    return EngineCoreRequest if same_requests(dialect) else _request_variant(dialect).wire


def same_requests(dialect: Dialect) -> bool:
    """Say whether requests are written as this package's types are."""
    same = (NATIVE.request, NATIVE.lora, NATIVE.pooling)
    return (dialect.request, dialect.lora, dialect.pooling) == same


def outputs_decoder(dialect: Dialect = NATIVE) -> MsgpackDecoder[EngineCoreOutputs]:
    """Return the decoder of EngineCoreOutputs bodies.

    Engines before 0.20 repeat the count of cached tokens with every output of a request, so
    `prefill_stats` is set in all of them. An output whose positions from 9 on are all nil, as
    the engine server writes those of its own, is read in every dialect.
    """
    if dialect.output == NATIVE.output:
        return MsgpackDecoder(EngineCoreOutputs)
    return _Translated(_outputs_variant(dialect))


def not_carried(request: EngineCoreRequest, dialect: Dialect) -> str | None:
    """Return the path of the first field set in `request` that the dialect has no place for, or
    None."""
    if request.mm_features and dialect.release < MULTIMODAL:
        return "mm_features"
    requests, adapters, poolings = _without_place(dialect)
    for prefix, part, fields in (
        ("", request, requests),
        ("lora_request.", request.lora_request, adapters),
        ("pooling_params.", request.pooling_params, poolings),
    ):
        name = _first_set(part, fields)
        if name is not None:
            return prefix + name
    return None


Fields = tuple[tuple[str, Any], ...]
"""Names of fields and their defaults."""


@cache
def _without_place(dialect: Dialect) -> tuple[Fields, Fields, Fields]:
    """Return the fields of requests, adapters and pooling parameters a release does not have."""

    def missing(kind: type[msgspec.Struct], order: Order) -> Fields:
        return tuple(
            (field.name, field.default)
            for field in msgspec.structs.fields(kind)
            if field.name not in order and field.name not in _NOT_MISSED
        )

    return (
        missing(EngineCoreRequest, dialect.request),
        missing(LoRARequest, dialect.lora),
        missing(PoolingParams, dialect.pooling),
    )


def _first_set(part: msgspec.Struct | None, fields: Fields) -> str | None:
    for name, default in fields if part is not None else ():
        if getattr(part, name) != default:
            return name
    return None


class _RequestEncoder(MsgpackEncoder):
    """Rewrites requests, and the adapters among the arguments of calls, before encoding."""

    def __init__(self, dialect: Dialect) -> None:
        super().__init__()
        self._dialect = dialect
        self._request = _request_variant(dialect)
        self._lora = _lora_variant(dialect)

    def encode(self, message: Any) -> list[Buffer]:
        if isinstance(message, EngineCoreRequest):
            self._refuse(not_carried(message, self._dialect))
            refuse_extensions(free_values(message))
            return self._write(self._request.write(message))
        if isinstance(message, UtilityCall):
            args = [self._adapter(a) if isinstance(a, LoRARequest) else a for a in message.args]
            message = msgspec.structs.replace(message, args=args)
        return super().encode(message)

    def _adapter(self, adapter: LoRARequest) -> list[Any]:
        self._refuse(_first_set(adapter, _without_place(self._dialect)[1]))
        return self._lora.write(adapter)

    def _refuse(self, field: str | None) -> None:
        if field is not None:
            raise ValueError(f"{field}: the engine is {self._dialect}, which cannot take it")


class _Translated(MsgpackDecoder[T]):
    """Decodes a variant and returns the type it stands for."""

    def __init__(self, variant: Variant[T]) -> None:
        super().__init__(variant.wire)
        self._variant = variant

    def decode(self, body: Buffer, aux: Sequence[Buffer] = ()) -> T:
        message = super().decode(body, aux)
        try:
            return self._variant.read(message)
        except ValueError as error:
            raise msgspec.ValidationError(str(error)) from None


@cache
def _lora_variant(dialect: Dialect) -> Variant[LoRARequest]:
    return Variant(LoRARequest, dialect.lora, required=3)


@cache
def _pooling_variant(dialect: Dialect) -> Variant[PoolingParams]:
    """Before 0.14 embeddings have an option of their own for what is `use_activation` since."""
    if dialect.release >= (0, 14):
        return Variant(PoolingParams, dialect.pooling)

    def use_activation(message: Any) -> bool | None:
        used: bool | None = message.normalize if _embeds(message) else message.use_activation
        return used

    return Variant(
        PoolingParams,
        dialect.pooling,
        types={"normalize": bool | None},
        read={"use_activation": use_activation},
        write={
            "normalize": lambda params: params.use_activation if _embeds(params) else None,
            "use_activation": lambda params: None if _embeds(params) else params.use_activation,
        },
    )


def _embeds(params: Any) -> bool:
    return params.task in EMBEDDING_TASKS


@cache
def _request_variant(dialect: Dialect, vocab_size: int | None = None) -> Variant[EngineCoreRequest]:
    lora, pooling = _lora_variant(dialect), _pooling_variant(dialect)
    token = int if vocab_size is None else Annotated[int, msgspec.Meta(ge=0, lt=vocab_size)]
    read: dict[str, Take] = {
        "lora_request": _optional("lora_request", lora.read),
        "pooling_params": _optional("pooling_params", pooling.read),
    }
    write: dict[str, Take] = {
        "lora_request": _optional("lora_request", lora.write),
        "pooling_params": _optional("pooling_params", pooling.write),
    }
    if "eos_token_id" in dialect.request:
        read["sampling_params"] = _sampling_with_eos
        write["sampling_params"] = _sampling_without_eos
        write["eos_token_id"] = _eos_token_id
    return Variant(
        EngineCoreRequest,
        dialect.request,
        required=dialect.request.index("prompt_embeds"),
        types={
            "prompt_token_ids": list[token] | None,  # type: ignore[valid-type]
            "lora_request": lora.wire | None,
            "pooling_params": pooling.wire | None,
            "eos_token_id": int | None,
        },
        read=read,
        write=write,
    )


def _optional(name: str, convert: Take) -> Take:
    def take(message: Any) -> Any:
        value = getattr(message, name)
        return None if value is None else convert(value)

    return take


def _eos_token_id(request: EngineCoreRequest) -> int | None:
    return request.sampling_params.eos_token_id if request.sampling_params else None


def _sampling_without_eos(request: EngineCoreRequest) -> SamplingParams | None:
    if request.sampling_params is None:
        return None
    return msgspec.structs.replace(request.sampling_params, eos_token_id=None)


def _sampling_with_eos(request: Any) -> SamplingParams | None:
    sampling: SamplingParams | None = request.sampling_params
    if sampling is None:
        return None
    return msgspec.structs.replace(sampling, eos_token_id=request.eos_token_id)


@cache
def _outputs_variant(dialect: Dialect) -> Variant[EngineCoreOutputs]:
    types: dict[str, Any] = dict.fromkeys(
        ("num_cached_tokens", "num_external_computed_tokens", "num_nans_in_logits"), int | None
    )
    read: dict[str, Take] = {"num_nans_in_logits": lambda output: output.num_nans_in_logits or 0}
    if "prefill_stats" not in dialect.output:
        read["prefill_stats"] = _prefill_stats
    if dialect.release < LOGPROBS_AS_ARRAYS:
        types["new_logprobs"] = _ListedLogprobs | None
        read["new_logprobs"] = _optional("new_logprobs", _as_arrays)
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
