"""What a request must keep so that no engine is harmed by it.

vLLM's engine trusts its front end: a token id outside the vocabulary ends the whole engine,
a field of the wrong type ends the thread that reads requests. So both the client, before it
sends, and the engine server, before it forwards, apply these checks. They follow from the
request and RequestLimits alone; that ids are unique is for the holder of the requests.
"""

import re
from math import isfinite
from types import UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin

import msgspec

from enginecore_wire.codec import Buffer, MsgpackDecoder
from enginecore_wire.control import RejectCode
from enginecore_wire.dialects import NATIVE, Dialect
from enginecore_wire.multimodal_rules import check_features
from enginecore_wire.problems import FieldProblem, RequestLimits, outside
from enginecore_wire.prompt_rules import check_prompt, prompt_length
from enginecore_wire.requests import (
    EngineCoreRequest,
    LateInteraction,
    LoRARequest,
    OutputKind,
    PoolingParams,
)
from enginecore_wire.sampling_rules import MAX_COUNT, MAX_NESTING, check_sampling, nests_deeper
from enginecore_wire.trace_rules import check_trace
from enginecore_wire.translation import request_decoder, request_type, same_requests

MAX_REQUEST_ID: Final = 1024
"""Characters of a request id: the engine repeats it with every token. The same for other ids."""

MAX_ADAPTER_ID: Final = 2**63 - 1
"""The workers keep adapter ids as 64-bit integers."""

REQUIRED_POSITIONS: Final = 9
"""Positions of ADD without which vLLM's decoder gives up."""

GENERATION_TASKS: Final = frozenset({"generate", "transcription", "realtime"})
LATE_INTERACTION_MODES: Final = ("cache_query", "score_doc")
SHOWN_CHARACTERS: Final = 80
"""Of a wrong value, in an error."""

_PATH: Final = re.compile(r"^(?P<what>.*?)(?: - at (?:`key` in )?`\$(?P<path>.*)`)?$", re.DOTALL)
_STEP: Final = re.compile(r"\[(\d+)\]|\[(\.\.\.)\]|\.(\w+)")


def checked_decoder(
    vocab_size: int, dialect: Dialect = NATIVE
) -> MsgpackDecoder[EngineCoreRequest]:
    """Return a decoder of ADD bodies that also holds prompt token ids to the vocabulary.

    The range is part of the typed decode and costs nothing extra. The positions vLLM insists
    on (nine, and ten before 0.17) are required. Its errors become a FieldProblem with
    `decode_problem`.

    Args:
        vocab_size: token ids run from 0 to `vocab_size` - 1.
        dialect: how the bodies are written.
    """
    if not same_requests(dialect):
        return request_decoder(dialect, vocab_size)
    required: list[tuple[str, Any]] = [
        (field.name, field.type)
        for field in msgspec.structs.fields(EngineCoreRequest)[:REQUIRED_POSITIONS]
    ]
    required[1] = ("prompt_token_ids", token_ids_type(vocab_size) | None)
    checked = msgspec.defstruct(
        "EngineCoreRequest", required, bases=(EngineCoreRequest,), array_like=True
    )
    return MsgpackDecoder(checked)  # type: ignore[arg-type]


def token_ids_type(vocab_size: int) -> Any:
    """Return the type of lists of token ids from 0 to `vocab_size` - 1."""
    return list[Annotated[int, msgspec.Meta(ge=0, lt=vocab_size)]]


def decode_problem(
    error: msgspec.DecodeError, body: Buffer | None = None, dialect: Dialect = NATIVE
) -> FieldProblem:
    """Return what a failed decode of an ADD body says about the request.

    Args:
        error: what the decoder raised.
        body: what it was given; the problem then tells the wrong value.
        dialect: how it is written.
    """
    match = _PATH.match(str(error))
    what, path = (match["what"], match["path"] or "") if match else (str(error), "")
    field = _named(path, request_type(dialect))
    value = None if body is None else _value_at(body, path)
    if value is not None:
        what = f"got {value}, {what[:1].lower()}{what[1:].partition(', got')[0]}"
    return FieldProblem(
        field,
        f"{field or 'request'}: {what}; send a value of that type and range",
        RejectCode.INVALID_REQUEST,
    )


def _named(path: str, kind: Any) -> str:
    """Return a path with the names of positions: `[3].top_p` is `sampling_params.top_p`."""
    named = ""
    for step in _STEP.finditer(path):
        index, _, key = step.groups()
        kind = _container(kind)
        found = [
            field
            for position, field in enumerate(_fields(kind))
            if field.encode_name == key or str(position) == index
        ]
        named += f".{found[0].encode_name}" if found else step.group()
        kind = found[0].type if found else (get_args(kind) or (None,))[-1]
    return named.removeprefix(".")


def _container(kind: Any) -> Any:
    """Return the struct, list or dict that a field of type `kind` can hold, or None."""
    choices = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return next((c for c in choices if _fields(c) or get_origin(c) in (list, dict)), None)


def _fields(kind: Any) -> tuple[msgspec.structs.FieldInfo, ...]:
    is_struct = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    return msgspec.structs.fields(kind) if is_struct else ()


def shown(value: Any) -> str:
    """Return a value for an error's text, not longer than a line."""
    text = "nil" if value is None else repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


def _value_at(body: Buffer, path: str) -> str | None:
    """Return the value at a path as a reader may see it; None where it cannot be told."""
    try:
        value: Any = msgspec.msgpack.decode(body, ext_hook=lambda *_: "an extension")
        for step in _STEP.finditer(path):
            index, rest, key = step.groups()
            if rest:
                return None
            value = value[int(index) if index else key]
    except (msgspec.DecodeError, RecursionError, LookupError, TypeError):
        return None
    if not path or isinstance(value, dict | list):
        return None
    return shown(value)


def check_request(
    request: EngineCoreRequest, limits: RequestLimits, *, tokens_checked: bool = False
) -> FieldProblem | None:
    """Return the first thing wrong with `request`, or None.

    Args:
        request: what is about to go to an engine.
        limits: what that engine can take.
        tokens_checked: the prompt's token ids came out of `checked_decoder`.
    """
    return (
        _check_names(request)
        or _check_plain(request)
        or check_trace(request.trace_headers)
        or _check_nesting(request)
        or check_prompt(request, limits, tokens_checked=tokens_checked)
        or check_features(request, limits)
        or _check_lora(request.lora_request, limits)
        or _check_params(request, limits)
    )


def _check_names(request: EngineCoreRequest) -> FieldProblem | None:
    for field, least in (
        ("request_id", 1),
        ("external_req_id", 0),
        ("session_id", 0),
        ("cache_salt", 1),
    ):
        name: str | None = getattr(request, field)
        if name is not None and not least <= len(name) <= MAX_REQUEST_ID:
            return outside(field, f"{len(name)} characters", f"{least} to {MAX_REQUEST_ID}")
    return None


def _check_plain(request: EngineCoreRequest) -> FieldProblem | None:
    if not isfinite(request.arrival_time) or request.arrival_time < 0:
        return outside("arrival_time", str(request.arrival_time), "seconds since 1970, 0 or more")
    for field, highest in (
        ("client_index", MAX_COUNT),
        ("current_wave", MAX_COUNT),
        ("data_parallel_rank", MAX_COUNT),
    ):
        number: int | None = getattr(request, field)
        if number is not None and not 0 <= number <= highest:
            return outside(field, str(number), f"0 to {highest}")
    if request.resumable:
        return outside("resumable", "true", "false", "streaming sessions are not supported")
    if request.abort_immediately:
        return outside(
            "abort_immediately", "true", "false", "such a request never ends; do not send it"
        )
    return None


def _check_nesting(request: EngineCoreRequest) -> FieldProblem | None:
    hints, pooling = request.kv_hints, request.pooling_params
    if hints is None and pooling is None and not request.reasoning_parser_kwargs:
        return None
    for field, values in (
        ("reasoning_parser_kwargs", [request.reasoning_parser_kwargs]),
        ("kv_hints.actions", [action.payload for action in hints.actions] if hints else []),
        ("pooling_params.extra_kwargs", [pooling.extra_kwargs] if pooling else []),
    ):
        if any(value and nests_deeper(value, MAX_NESTING) for value in values):
            return outside(field, "deeper nesting", f"at most {MAX_NESTING} levels")
    return None


def _check_lora(lora: LoRARequest | None, limits: RequestLimits) -> FieldProblem | None:
    if lora is None:
        return None
    if not limits.supports_lora:
        return outside("lora_request", repr(lora.lora_name), "nil", "this engine has no LoRA")
    if not 1 <= lora.lora_int_id <= MAX_ADAPTER_ID:
        return outside(
            "lora_request.lora_int_id",
            str(lora.lora_int_id),
            f"at least 1, at most {MAX_ADAPTER_ID}",
        )
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
    if pooling.dimensions is not None and not 1 <= pooling.dimensions <= MAX_COUNT:
        return outside("pooling_params.dimensions", str(pooling.dimensions), "at least 1")
    return _check_step_ids(pooling, limits.vocab_size) or _check_late(
        pooling.late_interaction_params
    )


def _check_step_ids(pooling: PoolingParams, vocab_size: int) -> FieldProblem | None:
    """Hold token ids to the vocabulary: they index what a worker computed."""
    step, returned = pooling.step_tag_id, pooling.returned_token_ids
    if step is not None and not 0 <= step < vocab_size:
        return outside("pooling_params.step_tag_id", str(step), f"0 to {vocab_size - 1}")
    if returned is not None and not returned:
        return outside(
            "pooling_params.returned_token_ids", "an empty array", "nil, or at least one token id"
        )
    for token in returned or ():
        if not 0 <= token < vocab_size:
            return outside(
                "pooling_params.returned_token_ids", f"token id {token}", f"0 to {vocab_size - 1}"
            )
    return None


def _check_late(late: LateInteraction | None) -> FieldProblem | None:
    if late is None:
        return None
    prefix = "pooling_params.late_interaction_params"
    if late.mode not in LATE_INTERACTION_MODES:
        return outside(f"{prefix}.mode", repr(late.mode), " or ".join(LATE_INTERACTION_MODES))
    if not 1 <= len(late.query_key) <= MAX_REQUEST_ID:
        return outside(
            f"{prefix}.query_key", f"{len(late.query_key)} characters", f"1 to {MAX_REQUEST_ID}"
        )
    if late.query_uses is not None and not 1 <= late.query_uses <= MAX_COUNT:
        return outside(f"{prefix}.query_uses", str(late.query_uses), f"1 to {MAX_COUNT}, or nil")
    return None


def _tasks(limits: RequestLimits) -> str:
    return "one of the engine's tasks: " + ", ".join(sorted(limits.tasks))
