"""Requests, adapters and pooling parameters at the positions of one vLLM release."""

from functools import cache
from typing import Annotated, Any, Final

import msgspec

from enginecore_wire.dialects import Dialect
from enginecore_wire.requests import EngineCoreRequest, LoRARequest, PoolingParams, SamplingParams
from enginecore_wire.variants import Take, Variant, optional

EMBEDDING_TASKS: Final = frozenset({"embed", "token_embed"})


@cache
def lora_variant(dialect: Dialect) -> Variant[LoRARequest]:
    """Return adapters as a release has them."""
    return Variant(LoRARequest, dialect.lora, required=3)


@cache
def pooling_variant(dialect: Dialect) -> Variant[PoolingParams]:
    """Return pooling parameters as a release has them.

    Before 0.14 embeddings have an option of their own for what is `use_activation` since.
    """
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
def request_variant(dialect: Dialect, vocab_size: int | None = None) -> Variant[EngineCoreRequest]:
    """Return ADD as a release has it, its prompt held to `vocab_size` ids if that is given."""
    lora, pooling = lora_variant(dialect), pooling_variant(dialect)
    token = int if vocab_size is None else Annotated[int, msgspec.Meta(ge=0, lt=vocab_size)]
    read: dict[str, Take] = {
        "lora_request": optional("lora_request", lora.read),
        "pooling_params": optional("pooling_params", pooling.read),
    }
    write: dict[str, Take] = {
        "lora_request": optional("lora_request", lora.write),
        "pooling_params": optional("pooling_params", pooling.write),
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
