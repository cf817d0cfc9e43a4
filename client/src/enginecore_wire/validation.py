"""What a request must keep so that no engine is harmed by it.

vLLM's engine trusts its front end: a token id outside the vocabulary ends the whole engine,
a field of the wrong type ends the thread that reads requests. So both the client, before it
sends, and the engine server, before it forwards, apply these checks. They follow from the
request and RequestLimits alone; that ids are unique is for the holder of the requests.
"""

import re
from typing import Annotated, Any, Final

import msgspec

from enginecore_wire.codec import MsgpackDecoder
from enginecore_wire.control import RejectCode
from enginecore_wire.problems import FieldProblem, RequestLimits, outside, too_large
from enginecore_wire.requests import EngineCoreRequest, LoRARequest, OutputKind, PoolingParams
from enginecore_wire.sampling_rules import MAX_NESTING, check_sampling, nests_deeper
from enginecore_wire.tensors import Tensor

MAX_REQUEST_ID: Final = 1024
"""Characters of a request id: the engine repeats it with every token."""

REQUIRED_POSITIONS: Final = 9
"""Positions of ADD without which vLLM's decoder gives up."""

GENERATION_TASKS: Final = frozenset({"generate", "transcription", "realtime"})
EMBEDDING_DTYPES: Final = frozenset({"float16", "bfloat16", "float32"})

_PATH = re.compile(r"^(?P<what>.*?)(?: - at `\$(?P<path>.*)`)?$", re.DOTALL)
_FIRST_INDEX = re.compile(r"^\[(\d+)\]")


def checked_decoder(vocab_size: int) -> MsgpackDecoder[EngineCoreRequest]:
    """Return a decoder of ADD bodies that also holds prompt token ids to the vocabulary.

    The range is part of the typed decode and costs nothing extra. The nine positions vLLM
    insists on are required. Its errors become a FieldProblem with `decode_problem`.

    Args:
        vocab_size: token ids run from 0 to `vocab_size` - 1.
    """
    token = Annotated[int, msgspec.Meta(ge=0, lt=vocab_size)]
    required: list[tuple[str, Any]] = [
        (field.name, field.type)
        for field in msgspec.structs.fields(EngineCoreRequest)[:REQUIRED_POSITIONS]
    ]
    required[1] = ("prompt_token_ids", list[token] | None)
    checked = msgspec.defstruct(
        "EngineCoreRequest", required, bases=(EngineCoreRequest,), array_like=True
    )
    return MsgpackDecoder(checked)  # type: ignore[arg-type]


def decode_problem(error: msgspec.DecodeError) -> FieldProblem:
    """Return what a failed decode of an ADD body says about the request."""
    match = _PATH.match(str(error))
    what, path = (match["what"], match["path"] or "") if match else (str(error), "")
    first = _FIRST_INDEX.match(path)
    names = EngineCoreRequest.__struct_fields__
    if first and int(first[1]) < len(names):
        path = names[int(first[1])] + path[first.end() :]
    place = path or "request"
    return FieldProblem(
        path, f"{place}: {what}; send a value of that type and range", RejectCode.INVALID_REQUEST
    )


def check_request(
    request: EngineCoreRequest, limits: RequestLimits, *, tokens_checked: bool = False
) -> FieldProblem | None:
    """Return the first thing wrong with `request`, or None.

    Args:
        request: what is about to go to an engine.
        limits: what that engine can take.
        tokens_checked: the prompt's token ids came out of `checked_decoder`.
    """
    if not 1 <= len(request.request_id) <= MAX_REQUEST_ID:
        return outside(
            "request_id", f"{len(request.request_id)} characters", f"1 to {MAX_REQUEST_ID}"
        )
    if request.resumable:
        return outside("resumable", "true", "false", "streaming sessions are not supported")
    if request.mm_features:
        return outside(
            "mm_features", f"{len(request.mm_features)} features", "none", "send token ids alone"
        )
    return (
        _check_nesting(request)
        or _check_prompt(request, limits, tokens_checked)
        or _check_lora(request.lora_request, limits)
        or _check_params(request, limits)
    )


def _check_nesting(request: EngineCoreRequest) -> FieldProblem | None:
    hints, pooling = request.kv_hints, request.pooling_params
    for field, values in (
        ("reasoning_parser_kwargs", [request.reasoning_parser_kwargs]),
        ("kv_hints.actions", [action.payload for action in hints.actions] if hints else []),
        ("pooling_params.extra_kwargs", [pooling.extra_kwargs] if pooling else []),
    ):
        if any(value and nests_deeper(value, MAX_NESTING) for value in values):
            return outside(field, "deeper nesting", f"at most {MAX_NESTING} levels")
    return None


def _check_prompt(
    request: EngineCoreRequest, limits: RequestLimits, tokens_checked: bool
) -> FieldProblem | None:
    tokens, embeds = request.prompt_token_ids, request.prompt_embeds
    if embeds is not None or request.prompt_is_token_ids is not None:
        problem = _check_embeds(request, limits)
        if problem:
            return problem
    if tokens is None and embeds is None:
        return outside("prompt_token_ids", "nil", "at least one token id")
    length = prompt_length(request)
    name = "prompt_embeds" if tokens is None else "prompt_token_ids"
    if length == 0:
        return outside(name, "an empty prompt", "at least one token")
    room = 1 if request.pooling_params is None else 0
    if length + room > limits.max_model_len:
        return too_large(
            name,
            f"{length} tokens",
            f"at most {limits.max_model_len - room} (max_model_len {limits.max_model_len})",
            "shorten the prompt",
        )
    if limits.prompt_tokens and length > limits.prompt_tokens:
        return too_large(
            name, f"{length} tokens", f"at most {limits.prompt_tokens}", "shorten the prompt"
        )
    if tokens is not None and not tokens_checked:
        low, high = min(tokens), max(tokens)
        if low < 0 or high >= limits.vocab_size:
            bad = low if low < 0 else high
            return outside(
                f"prompt_token_ids[{tokens.index(bad)}]",
                str(bad),
                f"0 to {limits.vocab_size - 1}",
                "use this model's tokenizer",
            )
    return None


def prompt_length(request: EngineCoreRequest) -> int:
    """Return the positions the prompt takes, in tokens."""
    if request.prompt_token_ids is not None:
        return len(request.prompt_token_ids)
    if request.prompt_embeds is not None and request.prompt_embeds.shape:
        return request.prompt_embeds.shape[0]
    return 0


def _check_embeds(request: EngineCoreRequest, limits: RequestLimits) -> FieldProblem | None:
    tokens, embeds, mask = (
        request.prompt_token_ids,
        request.prompt_embeds,
        request.prompt_is_token_ids,
    )
    if embeds is None:
        return outside("prompt_is_token_ids", "a mask", "nil without prompt_embeds")
    if not limits.hidden_size:
        return outside("prompt_embeds", "a tensor", "nil", "this engine takes token ids only")
    problem = _check_embeds_tensor(embeds, limits.hidden_size)
    if problem:
        return problem
    if tokens is not None and len(tokens) != embeds.shape[0]:
        return outside(
            "prompt_token_ids", f"{len(tokens)} ids", f"{embeds.shape[0]}, as prompt_embeds has"
        )
    if (mask is None) != (tokens is None):
        return outside(
            "prompt_is_token_ids",
            "nil" if mask is None else "a mask",
            "a mask exactly when prompt_token_ids come with prompt_embeds",
        )
    if mask is not None and len(mask) != embeds.shape[0]:
        return outside(
            "prompt_is_token_ids", f"{len(mask)} items", f"{embeds.shape[0]}, one per position"
        )
    return None


def _check_embeds_tensor(embeds: Tensor, hidden_size: int) -> FieldProblem | None:
    if embeds.dtype not in EMBEDDING_DTYPES:
        return outside("prompt_embeds", f"dtype {embeds.dtype}", "float16, bfloat16 or float32")
    if len(embeds.shape) != 2 or embeds.shape[1] != hidden_size:
        return outside(
            "prompt_embeds", f"shape {list(embeds.shape)}", f"[prompt tokens, {hidden_size}]"
        )
    return None


def _check_lora(lora: LoRARequest | None, limits: RequestLimits) -> FieldProblem | None:
    if lora is None:
        return None
    if not limits.supports_lora:
        return outside("lora_request", repr(lora.lora_name), "nil", "this engine has no LoRA")
    if lora.lora_int_id < 1:
        return outside("lora_request.lora_int_id", str(lora.lora_int_id), "at least 1")
    if not lora.lora_path or not lora.lora_name:
        empty = "lora_name" if lora.lora_path else "lora_path"
        return outside(f"lora_request.{empty}", "an empty string", "a name and a path")
    return None


def _check_params(request: EngineCoreRequest, limits: RequestLimits) -> FieldProblem | None:
    sampling, pooling = request.sampling_params, request.pooling_params
    if (sampling is None) == (pooling is None):
        count = "neither" if sampling is None else "both"
        return outside(
            "sampling_params", f"{count} of sampling_params and pooling_params", "exactly one"
        )
    if pooling is not None:
        return _check_pooling(pooling, limits)
    if not limits.tasks & GENERATION_TASKS:
        return outside("sampling_params", "a generation request", _tasks(limits))
    assert sampling is not None
    return check_sampling(sampling, limits, prompt_length(request))


def _check_pooling(pooling: PoolingParams, limits: RequestLimits) -> FieldProblem | None:
    if pooling.task is None or pooling.task in GENERATION_TASKS or pooling.task not in limits.tasks:
        return outside("pooling_params.task", repr(pooling.task), _tasks(limits))
    if pooling.output_kind is not OutputKind.FINAL_ONLY:
        return outside(
            "pooling_params.output_kind", pooling.output_kind.name, OutputKind.FINAL_ONLY.name
        )
    if pooling.dimensions is not None and pooling.dimensions < 1:
        return outside("pooling_params.dimensions", str(pooling.dimensions), "at least 1")
    return None


def _tasks(limits: RequestLimits) -> str:
    return "one of the engine's tasks: " + ", ".join(sorted(limits.tasks))
