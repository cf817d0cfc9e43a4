"""What one engine accepts: requests are completed, checked and encoded against its READY."""

import sys
from math import inf
from typing import Any, Final

import msgspec

from enginecore_client._core.grammar import in_engine_terms
from enginecore_client._core.spans import seconds_of
from enginecore_client.errors import RequestRejectedError
from enginecore_wire.calls import check_call
from enginecore_wire.checker import RequestChecker
from enginecore_wire.codec import UNSENDABLE, MsgpackEncoder
from enginecore_wire.control import Ready
from enginecore_wire.dialects import NATIVE, Dialect
from enginecore_wire.plain import refuse_extensions
from enginecore_wire.problems import FieldProblem, RequestLimits
from enginecore_wire.prompt_rules import prompt_length
from enginecore_wire.requests import (
    EngineCoreRequest,
    KvHintAction,
    KvHints,
    PoolingParams,
    RequestType,
    SamplingParams,
    StructuredOutputs,
    UtilityCall,
)
from enginecore_wire.tensors import Tensor
from enginecore_wire.translation import not_carried, request_encoder
from enginecore_wire.validation import checked_decoder, decode_problem, shown

_ANY_TOKEN: Final = sys.maxsize
_LAST_RANK: Final = 65535
Frames = list[bytes | memoryview]


class Admission:
    """The rules of one engine, taken from its READY.

    `dialect` is where it expects each field, and `prompts` whether their token ids are checked.
    """

    def __init__(self, ready: Ready, dialect: Dialect = NATIVE, *, prompts: bool = True) -> None:
        facts = ready.engine
        self.in_flight = ready.limits.in_flight
        self._slot = ready.slot
        self._frame_bytes = ready.limits.frame_bytes
        self._limits = RequestLimits(
            vocab_size=ready.vocab_size or _ANY_TOKEN,
            max_model_len=facts.get("max_model_len") or sys.maxsize,
            prompt_tokens=ready.limits.prompt_tokens,
            supports_lora=bool(facts.get("supports_lora", False)),
            hidden_size=ready.hidden_size,
            modalities=frozenset(ready.modalities),
            max_logprobs=ready.max_logprobs,
        )
        self._checker = RequestChecker(self._limits, prompts=prompts)
        self._encoder = MsgpackEncoder()
        self._dialect = dialect
        self._translates = dialect != NATIVE
        self._writer = request_encoder(dialect)

    def request(
        self, request: EngineCoreRequest, internal_id: str, now_wall: float, wave: int = 0
    ) -> tuple[Frames, int]:
        """Return the frames of ADD and the length of the prompt in tokens.

        The engine gets the internal id, this client's slot, the wave, and an explicit `max_tokens`.

        Raises:
            RequestRejectedError: a field is wrong; `field` is its path.
        """
        complete = msgspec.structs.replace(
            request,
            request_id="",
            prompt_token_ids=None,
            prompt_embeds=None if request.prompt_embeds is None else _embeds(request),
            arrival_time=0.0,
            external_req_id="",
            client_index=self._slot,
            current_wave=wave,
            data_parallel_rank=None,
            sampling_params=self._sampling(request),
        )
        outline = self._checker.outline(complete)
        complete.request_id = internal_id
        complete.prompt_token_ids = request.prompt_token_ids
        complete.arrival_time = request.arrival_time or now_wall
        complete.external_req_id = request.external_req_id or request.request_id
        try:
            frames = self._encoder.encode(complete)
            problem = self._checker.problem(complete, frames, outline)
        except msgspec.DecodeError as error:
            raise rejected(decode_problem(error, frames[0]), request.request_id) from error
        except UNSENDABLE as error:
            raise _not_sent(complete, error, request.request_id) from error
        if problem is not None:
            raise rejected(problem, request.request_id)
        if self._translates:
            frames = self._translated(complete, request.request_id)
        self._check_size(frames, request.request_id)
        return [RequestType.ADD, *frames], prompt_length(complete)

    def call(self, call_id: int, method: str, args: list[Any]) -> Frames:
        """Return the frames of a utility call.

        Raises:
            RequestRejectedError: the method is not on the list, or an argument cannot travel.
        """
        problem = check_call(method, args)
        if problem is not None:
            raise rejected(problem)
        try:
            frames = self._writer.encode(UtilityCall(self._slot, call_id, method, args))
        except UNSENDABLE as error:
            raise RequestRejectedError(f"args of {method}: {error}", field="args") from error
        self._check_size(frames, None)
        return [RequestType.UTILITY, *frames]

    def abort(self, internal_ids: list[str]) -> Frames:
        """Return the frames of ABORT."""
        return [RequestType.ABORT, *self._encoder.encode(internal_ids)]

    def _translated(self, request: EngineCoreRequest, request_id: str) -> Frames:
        """Return a request's frames as an engine of another release expects them."""
        field = not_carried(request, self._dialect)
        if field is not None:
            raise RequestRejectedError(
                f"{field}: the engine is {self._dialect}, which has no place for it; leave it out",
                field=field,
                request_ids=[request_id],
            )
        return self._writer.encode(request)

    def _sampling(self, request: EngineCoreRequest) -> Any:
        params = request.sampling_params
        wanted = getattr(params, "structured_outputs", None)
        if params is not None and wanted is not None:
            params = msgspec.structs.replace(params, structured_outputs=in_engine_terms(wanted))
        if params is None or getattr(params, "max_tokens", 0) is not None:
            return params
        tokens: Any = request.prompt_token_ids
        if not isinstance(tokens, list | tuple | None):
            return params  # the decoder tells what is wrong with the prompt
        room = self._limits.max_model_len - prompt_length(request)
        return msgspec.structs.replace(params, max_tokens=max(room, 1))

    def _check_size(self, frames: Frames, request_id: str | None) -> None:
        for frame in frames:
            if len(frame) > self._frame_bytes:
                raise RequestRejectedError(
                    f"a frame of {len(frame)} bytes is over this engine's limit of "
                    f"{self._frame_bytes}; send less in one request",
                    request_ids=[request_id] if request_id else [],
                )


def _embeds(request: EngineCoreRequest) -> Tensor:
    """Return the prompt's embeddings with torch's name of their dtype, as engines want it.

    Raises:
        RequestRejectedError: they are no array, or one that cannot travel.
    """
    given: Any = request.prompt_embeds
    try:
        return Tensor.of(given).with_torch_dtype()
    except UNSENDABLE as error:
        raise RequestRejectedError(
            f"prompt_embeds: {error}", field="prompt_embeds", request_ids=[request.request_id]
        ) from error


def mistyped(request: EngineCoreRequest) -> RequestRejectedError | None:
    """Return the error for the first field of a type that no engine takes; None for none."""
    try:
        frames = MsgpackEncoder().encode(request)
        checked_decoder(_ANY_TOKEN).decode(frames[0], frames[1:])
    except msgspec.DecodeError as error:
        return rejected(decode_problem(error, frames[0]), request.request_id)
    except UNSENDABLE as error:
        return _not_sent(request, error, request.request_id)
    return None


def _not_sent(message: msgspec.Struct, error: Exception, request_id: str) -> RequestRejectedError:
    """Return the error for the field that cannot be encoded."""
    field, value = _unsendable(message, MsgpackEncoder())
    return RequestRejectedError(
        f"{field or 'request'}: got {shown(value)}, which cannot travel: {error}",
        field=field,
        request_ids=[request_id],
    )


def _unsendable(message: msgspec.Struct, encoder: MsgpackEncoder) -> tuple[str, Any]:
    """Return path and value of the first field that cannot be encoded; "" for none."""
    for name in message.__struct_fields__:
        value = getattr(message, name)
        if isinstance(value, msgspec.Struct):
            inner, found = _unsendable(value, encoder)
            if inner:
                return f"{name}.{inner}", found
        try:
            if isinstance(value, dict):
                refuse_extensions(value)
            encoder.encode(value)
        except UNSENDABLE:
            return name, value
    return "", message


def unusable(ready: Ready) -> str | None:
    """Return what in a READY no client can work with, field and value, or None."""
    limits, length = ready.limits, ready.engine.get("max_model_len", 1)
    for field, value, low, high in (
        ("vocab_size", ready.vocab_size, 0, _ANY_TOKEN),
        ("hidden_size", ready.hidden_size, 0, sys.maxsize),
        ("max_logprobs", ready.max_logprobs, -1, sys.maxsize),
        ("rank", ready.rank, 0, _LAST_RANK),
        ("slot", ready.slot, 0, sys.maxsize),
        ("engine.max_model_len", length, 1, sys.maxsize),
        ("limits.frame_bytes", limits.frame_bytes, 1, sys.maxsize),
        ("limits.in_flight", limits.in_flight, 1, sys.maxsize),
        ("limits.prompt_tokens", limits.prompt_tokens, 0, sys.maxsize),
    ):
        if type(value) is not int or not low <= value <= high:
            return f"{field} {value!r}"
    for field, seconds in msgspec.structs.asdict(ready.timers).items():
        if not 0 < seconds < inf:  # also true for nan
            return f"timers.{field} {seconds!r}"
    return None


def rejected(problem: FieldProblem, *request_ids: str) -> RequestRejectedError:
    """Return the error for a field that is wrong."""
    return RequestRejectedError(problem.message, field=problem.field, request_ids=request_ids)


def deadline_after(seconds: float | None, now: float, field: str) -> float | None:
    """Return when `seconds` from `now` have passed; None for never.

    Raises:
        RequestRejectedError: `seconds` is no time from now on; `field` is the caller's name for it.
    """
    if seconds is None:
        return None
    return now + seconds_of(field, seconds, "seconds from now, 0 or more, or None")


def check_types(request: EngineCoreRequest) -> None:
    """Refuse what could not even be booked or encoded; all else is held to the engine's READY."""
    if not isinstance(request, EngineCoreRequest):
        raise _mistyped("request", request, EngineCoreRequest)
    if not isinstance(request.request_id, str):
        raise _mistyped("request_id", request.request_id, str)
    refuse_text(request.prompt_token_ids)
    sampling, hints = request.sampling_params, request.kv_hints
    if sampling is not None:
        if not isinstance(sampling, SamplingParams):
            raise _mistyped("sampling_params", sampling, SamplingParams)
        if sampling.structured_outputs is not None:
            _expect(
                "sampling_params.structured_outputs", sampling.structured_outputs, StructuredOutputs
            )
    if request.pooling_params is not None:
        _expect("pooling_params", request.pooling_params, PoolingParams)
    if hints is not None:
        _expect("kv_hints", hints, KvHints)
        _expect("kv_hints.actions", hints.actions, list)
        for index, action in enumerate(hints.actions):
            _expect(f"kv_hints.actions[{index}]", action, KvHintAction)


def refuse_text(prompt: Any) -> None:
    """Refuse a prompt that is text, of which every character would be taken for a token.

    Raises:
        RequestRejectedError: it is.
    """
    if isinstance(prompt, str | bytes):
        raise RequestRejectedError(
            f"prompt_token_ids: got text ({shown(prompt)}), allowed: token ids; encode it first, "
            "such as with enginecore_client.text.Tokenizer.load(model).encode(text)",
            field="prompt_token_ids",
        )


def _expect(field: str, value: Any, kind: type) -> None:
    if not isinstance(value, kind):
        raise _mistyped(field, value, kind)


def _mistyped(field: str, value: Any, kind: type) -> RequestRejectedError:
    return RequestRejectedError(
        f"{field}: got {shown(value)}, expected {kind.__name__}; send a value of that type",
        field=field,
    )
