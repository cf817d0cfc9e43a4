"""Which log-probabilities a request may ask for."""

from typing import Any, Final

from enginecore_wire.problems import FieldProblem, RequestLimits, outside
from enginecore_wire.requests import SamplingParams
from enginecore_wire.tensors import Tensor

_FEWER: Final = "for certain tokens there is logprob_token_ids"

_INTEGERS: Final = frozenset(("|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8"))


def check_logprobs(
    params: SamplingParams, limits: RequestLimits, prompt_length: int
) -> FieldProblem | None:
    """Return the first thing wrong with the log-probabilities that `params` ask for, or None.

    Args:
        params: what goes to the engine.
        limits: what that engine can take.
        prompt_length: the prompt's tokens.
    """
    if (
        params.logprobs is None
        and params.prompt_logprobs is None
        and params.prompt_logprob_token_ids is None
        and params.prompt_logprob_start is None
    ):
        return None
    most = limits.vocab_size if limits.max_logprobs == -1 else limits.max_logprobs
    for name, count in (
        ("logprobs", params.logprobs),
        ("prompt_logprobs", params.prompt_logprobs),
    ):
        if count is None:
            continue
        wanted = limits.vocab_size if count == -1 else count
        if not 0 <= wanted <= most:
            shown = "-1 (the whole vocabulary)" if count == -1 else count
            return _bad(name, shown, f"0 to {most}", _FEWER if name == "logprobs" else "")
    ids = params.logprob_token_ids
    if ids is not None and params.logprobs is not None and params.logprobs != len(ids):
        return _bad("logprobs", params.logprobs, f"{len(ids)}, as logprob_token_ids has")
    rows, start = params.prompt_logprob_token_ids, params.prompt_logprob_start
    if rows is None:
        if start is not None:
            return _bad("prompt_logprob_start", start, "nil without prompt_logprob_token_ids")
        return None
    if start is not None and start < 0:
        return _bad("prompt_logprob_start", start, "at least 0")
    return _check_rows(rows, prompt_length - 1 - (start or 0), most, limits.vocab_size)


def _check_rows(rows: Tensor, count: int, most: int, vocab_size: int) -> FieldProblem | None:
    name = "prompt_logprob_token_ids"
    if rows.dtype not in _INTEGERS:
        return _bad(name, f"dtype {rows.dtype}", "an integer dtype of numpy, such as <i4")
    shape = list(rows.shape)
    if len(shape) != 2 or shape[0] != count or not 1 <= shape[1] <= most:
        return _bad(name, f"shape {shape}", f"[{max(count, 0)}, 1 to {most}]")
    flat = [token for row in rows.tolist() for token in row]
    if not flat or min(flat) < -1 or max(flat) >= vocab_size:
        return _bad(name, "a token id outside the vocabulary", f"-1 (padding) to {vocab_size - 1}")
    return None


def _bad(field: str, value: Any, allowed: str, remedy: str = "") -> FieldProblem:
    return outside(f"sampling_params.{field}", str(value), allowed, remedy)
