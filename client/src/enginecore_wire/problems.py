"""What can be wrong with a request, and the limits it is held to."""

import msgspec

from enginecore_wire.control import DEFAULT_MAX_LOGPROBS, RejectCode


class RequestLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one engine can take; counts are tokens.

    `prompt_tokens` 0 sets no bound besides `max_model_len`; `max_logprobs` -1 allows the
    whole vocabulary; `hidden_size` 0 means that prompt embeddings are not taken, no
    `modalities` that multimodal items are not. `tasks` is the engine's answer to
    `get_supported_tasks`.
    """

    vocab_size: int
    max_model_len: int
    prompt_tokens: int = 0
    max_logprobs: int = DEFAULT_MAX_LOGPROBS
    supports_lora: bool = False
    hidden_size: int = 0
    modalities: frozenset[str] = frozenset()
    tasks: frozenset[str] = frozenset({"generate"})


class FieldProblem(msgspec.Struct, frozen=True):
    """One thing wrong with a request.

    `field` is the path of the offending field (empty: the message as a whole); `message`
    names it, its value, the limit and what to do.
    """

    field: str
    message: str
    code: RejectCode


def outside(field: str, value: str, allowed: str, remedy: str = "") -> FieldProblem:
    """Return the problem that `field` is `value` where only `allowed` may be."""
    return _problem(RejectCode.INVALID_REQUEST, field, value, allowed, remedy)


def too_large(field: str, value: str, allowed: str, remedy: str) -> FieldProblem:
    """Return the problem that `field` is over a limit on size."""
    return _problem(RejectCode.TOO_LARGE, field, value, allowed, remedy)


def _problem(code: RejectCode, field: str, value: str, allowed: str, remedy: str) -> FieldProblem:
    advice = remedy or "change it and send the request again"
    return FieldProblem(field, f"{field}: got {value}, allowed: {allowed}; {advice}", code)
