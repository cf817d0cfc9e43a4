"""Codecs between this package's types and the positions of one vLLM release.

Where an engine's positions are those of this package's types, these are the plain codecs.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, Final, TypeVar

import msgspec

from enginecore_wire.codec import Buffer, MsgpackDecoder, MsgpackEncoder, free_values
from enginecore_wire.dialects import NATIVE, Dialect
from enginecore_wire.new_tokens import OutputsDecoder
from enginecore_wire.output_variants import outputs_variant
from enginecore_wire.outputs import EngineCoreOutputs
from enginecore_wire.plain import refuse_extensions
from enginecore_wire.positions import MULTIMODAL, Order
from enginecore_wire.request_variants import lora_variant, request_variant
from enginecore_wire.requests import (
    EngineCoreRequest,
    LoRARequest,
    PoolingParams,
    UtilityCall,
)
from enginecore_wire.variants import Variant

T = TypeVar("T", bound=msgspec.Struct)

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
    return _Translated(request_variant(dialect, vocab_size))


def request_type(dialect: Dialect = NATIVE) -> type[Any]:
    """Return the type ADD bodies are decoded as: its fields name the positions."""
    return EngineCoreRequest if same_requests(dialect) else request_variant(dialect).wire


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
        return OutputsDecoder()
    return _Translated(outputs_variant(dialect))


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
        self._request = request_variant(dialect)
        self._lora = lora_variant(dialect)

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
