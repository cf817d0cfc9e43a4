"""The checks of a request that this side is about to send, in as little time as they allow.

A front end sends many requests that differ in their names and prompts alone. What was approved
once, these apart, is known by its encoding and not looked at again; of a prompt, the token ids are
checked where they are. All else, and whatever may be wrong, goes the long way.
"""

import sys
from collections.abc import Sequence
from functools import cache
from math import inf
from typing import Any, Final

import msgspec

from enginecore_wire.codec import UNSENDABLE, Buffer
from enginecore_wire.problems import FieldProblem, RequestLimits
from enginecore_wire.requests import EngineCoreRequest
from enginecore_wire.validation import (
    MAX_REQUEST_ID,
    check_request,
    checked_decoder,
    token_ids_type,
)

MOST_APPROVED: Final = 512
"""How many encodings are kept; a front end with more kinds of requests starts anew."""


class RequestChecker:
    """Holds requests to what one engine can take. Not safe across threads.

    Args:
        limits: what the engine can take.
        prompts: whether token ids of prompts are checked, which takes as long as all else.
    """

    def __init__(self, limits: RequestLimits, *, prompts: bool = True) -> None:
        self._limits = limits
        self._checks_prompts = prompts
        self._longest = limits.max_model_len - 1
        if limits.prompt_tokens:
            self._longest = min(self._longest, limits.prompt_tokens)
        self._decoder = checked_decoder(limits.vocab_size if prompts else sys.maxsize)
        self._prompt = _prompt_type(limits.vocab_size)
        self._encoder = msgspec.msgpack.Encoder()
        self._approved: set[bytes] = set()

    def outline(self, request: EngineCoreRequest) -> bytes | None:
        """Return the encoding of a request that has no name, time and token ids yet; None if what
        is right about it depends on the prompt, or if it has tensors."""
        params: Any = request.sampling_params
        if (
            params is None
            or request.prompt_embeds is not None
            or request.mm_features is not None
            or params.prompt_logprob_token_ids is not None
            or params.routed_experts_prompt_start != 0
        ):
            return None
        try:
            return self._encoder.encode(request)
        except UNSENDABLE:  # to encode the whole request will tell why
            return None

    def problem(
        self, request: EngineCoreRequest, frames: Sequence[Buffer], outline: bytes | None
    ) -> FieldProblem | None:
        """Return the first thing wrong with a request, or None.

        Args:
            request: with its name, time and token ids.
            frames: its encoding.
            outline: what `outline` returned when it had none of them.

        Raises:
            msgspec.DecodeError: no engine can read it.
        """
        if outline in self._approved and self._own_is_right(request):
            return None
        sent = self._decoder.decode(frames[0], frames[1:])
        problem = check_request(sent, self._limits_of(sent), tokens_checked=True)
        if problem is None and outline is not None:
            if len(self._approved) >= MOST_APPROVED:
                self._approved.clear()
            self._approved.add(outline)
        return problem

    def _own_is_right(self, request: EngineCoreRequest) -> bool:
        """Say whether what is this request's own is surely right: its names, time and token ids."""
        at, token_ids = request.arrival_time, request.prompt_token_ids
        if type(at) is not float or not 0.0 <= at < inf:
            return False
        if type(token_ids) is not list or not 0 < len(token_ids) <= self._longest:
            return False
        for name in (request.request_id, request.external_req_id):
            if type(name) is not str or not 0 < len(name) <= MAX_REQUEST_ID:
                return False
        if not self._checks_prompts:
            return True
        try:
            msgspec.convert((token_ids,), self._prompt)
        except msgspec.ValidationError:
            return False
        return True

    def _limits_of(self, request: EngineCoreRequest) -> RequestLimits:
        """Return the limits, the task of a pooling request taken for one of the engine's."""
        pooling = request.pooling_params
        if pooling is None or pooling.task is None:
            return self._limits
        return msgspec.structs.replace(self._limits, tasks=self._limits.tasks | {pooling.task})


@cache
def _prompt_type(vocab_size: int) -> type[msgspec.Struct]:
    """Return a struct of one field, token ids: msgspec looks into a struct's types once, and into
    those of any other hint at every conversion."""
    return msgspec.defstruct("Prompt", [("token_ids", token_ids_type(vocab_size))], array_like=True)
