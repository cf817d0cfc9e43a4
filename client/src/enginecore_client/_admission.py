"""What one engine accepts: requests are completed, checked and encoded against its READY."""

import sys
from typing import Any, Final

import msgspec

from enginecore_client.errors import RequestRejectedError
from enginecore_wire.codec import MsgpackEncoder
from enginecore_wire.control import Ready
from enginecore_wire.problems import FieldProblem, RequestLimits
from enginecore_wire.requests import EngineCoreRequest, RequestType, UtilityCall
from enginecore_wire.utility import UTILITY_METHODS
from enginecore_wire.validation import (
    check_request,
    checked_decoder,
    decode_problem,
    prompt_length,
)

_ANY_TOKEN: Final = sys.maxsize

Frames = list[bytes | memoryview]


class Admission:
    """The rules of one engine, taken from its READY."""

    def __init__(self, ready: Ready) -> None:
        facts = ready.engine
        self.in_flight = ready.limits.in_flight
        self._slot = ready.slot
        self._frame_bytes = ready.limits.frame_bytes
        self._limits = RequestLimits(
            vocab_size=ready.vocab_size or _ANY_TOKEN,
            max_model_len=facts.get("max_model_len") or sys.maxsize,
            prompt_tokens=ready.limits.prompt_tokens,
            supports_lora=bool(facts.get("supports_lora", False)),
        )
        self._decoder = checked_decoder(self._limits.vocab_size)
        self._encoder = MsgpackEncoder()

    def request(
        self, request: EngineCoreRequest, internal_id: str, now_wall: float
    ) -> tuple[Frames, int]:
        """Return the frames of ADD and the length of the prompt in tokens.

        The engine gets the internal id, this client's slot, and an explicit `max_tokens`.

        Raises:
            RequestRejectedError: a field is wrong; `field` is its path.
        """
        complete = msgspec.structs.replace(
            request,
            request_id=internal_id,
            external_req_id=request.external_req_id or request.request_id,
            client_index=self._slot,
            arrival_time=request.arrival_time or now_wall,
            data_parallel_rank=None,
            sampling_params=self._sampling(request),
        )
        try:
            frames = self._encoder.encode(complete)
            self._decoder.decode(frames[0], frames[1:])
        except msgspec.DecodeError as error:
            raise rejected(decode_problem(error), request.request_id) from error
        except (TypeError, OverflowError) as error:
            raise RequestRejectedError(str(error), request_ids=[request.request_id]) from error
        problem = check_request(complete, self._limits_of(request), tokens_checked=True)
        if problem is not None:
            raise rejected(problem, request.request_id)
        message: Frames = [RequestType.ADD, *frames]
        self._check_size(message, request.request_id)
        return message, prompt_length(request)

    def call(self, call_id: int, method: str, args: list[Any]) -> Frames:
        """Return the frames of a utility call.

        Raises:
            RequestRejectedError: the method is not on the list, or an argument cannot travel.
        """
        if method not in UTILITY_METHODS:
            raise RequestRejectedError(
                f"method: {method!r} is no utility call; known are {sorted(UTILITY_METHODS)}",
                field="method",
            )
        try:
            frames = self._encoder.encode(UtilityCall(self._slot, call_id, method, args))
        except (TypeError, OverflowError) as error:
            raise RequestRejectedError(f"args of {method}: {error}", field="args") from error
        message: Frames = [RequestType.UTILITY, *frames]
        self._check_size(message, None)
        return message

    def abort(self, internal_ids: list[str]) -> Frames:
        """Return the frames of ABORT."""
        return [RequestType.ABORT, *self._encoder.encode(internal_ids)]

    def _sampling(self, request: EngineCoreRequest) -> Any:
        params = request.sampling_params
        if params is None or getattr(params, "max_tokens", 0) is not None:
            return params
        room = self._limits.max_model_len - prompt_length(request)
        return msgspec.structs.replace(params, max_tokens=max(room, 1))

    def _limits_of(self, request: EngineCoreRequest) -> RequestLimits:
        pooling = request.pooling_params
        if pooling is None or pooling.task is None:
            return self._limits
        return msgspec.structs.replace(self._limits, tasks=self._limits.tasks | {pooling.task})

    def _check_size(self, message: Frames, request_id: str | None) -> None:
        largest = max(len(frame) for frame in message)
        if largest > self._frame_bytes:
            raise RequestRejectedError(
                f"a frame of {largest} bytes is over this engine's limit of "
                f"{self._frame_bytes}; send less in one request",
                request_ids=[request_id] if request_id else [],
            )


def rejected(problem: FieldProblem, request_id: str) -> RequestRejectedError:
    """Return the error for a field that is wrong."""
    return RequestRejectedError(problem.message, field=problem.field, request_ids=[request_id])
