"""The ranges of sampling parameters.

vLLM 0.32 checks some of these in its front end and some while decoding, where a violation ends
the thread that reads requests; others only fail in the worker and end the engine. All of them
are held here.
"""

from collections.abc import Collection, Iterable
from math import inf, isfinite
from typing import Any, Final

import msgspec

from enginecore_wire.logprob_rules import check_logprobs
from enginecore_wire.problems import FieldProblem, RequestLimits, outside
from enginecore_wire.requests import RepetitionDetection, SamplingParams, StructuredOutputs

MAX_COUNT: Final = 2**31 - 1
"""Largest number of tokens the workers' 32-bit counters hold."""

MAX_LOGPROB_TOKEN_IDS: Final = 128
MAX_ALLOWED_TOKEN_IDS: Final = 1024
MAX_LOGIT_BIAS: Final = 1024
MAX_STOP_TOKEN_IDS: Final = 128
MAX_BAD_WORDS: Final = 128
MAX_BAD_WORD_TOKENS: Final = 1024
"""Lengths of the workers' per-request tables (vLLM 0.32, model runner V2)."""

MAX_NESTING: Final = 64
"""Nested objects and arrays in a JSON schema, whose grammar would take too long to build, and in
values that pass through: engines copy and pickle those, each to a depth of its own."""

TAG_NESTING: Final = MAX_NESTING + 16
"""The same for a structural tag, which wraps schemas."""

WITHOUT_CHOICE: Final = frozenset({"xgrammar"})
"""Grammar libraries for which a front end writes a choice as a grammar; engines fail at it."""

SEED_MINIMUM: Final = -(2**63)
SEED_MAXIMUM: Final = 2**63 - 1

_FLOATS: Final = (
    ("temperature", 0.0, 2.0, "0 to 2"),
    ("min_p", 0.0, 1.0, "0 to 1"),
    ("presence_penalty", -2.0, 2.0, "-2 to 2"),
    ("frequency_penalty", -2.0, 2.0, "-2 to 2"),
)
_PREFIX: Final = "sampling_params."


def check_sampling(
    params: SamplingParams, limits: RequestLimits, prompt_length: int
) -> FieldProblem | None:
    """Return the first thing wrong with `params`, or None.

    Args:
        params: what goes to the engine, completed by the front end.
        limits: what that engine can take.
        prompt_length: the prompt's tokens.
    """
    return (
        _check_numbers(params)
        or _check_lengths(params, limits)
        or _check_token_ids(params, limits.vocab_size)
        or check_logprobs(params, limits, prompt_length)
        or _check_text(params)
        or _check_rest(params, prompt_length)
    )


def _bad(field: str, value: Any, allowed: str, remedy: str = "") -> FieldProblem:
    return outside(_PREFIX + field, str(value), allowed, remedy)


def _check_numbers(params: SamplingParams) -> FieldProblem | None:
    for name, low, high, allowed in _FLOATS:
        value = getattr(params, name)
        if not low <= value <= high:  # also true for nan
            return _bad(name, value, allowed)
    if not 0.0 < params.top_p <= 1.0:
        return _bad("top_p", params.top_p, "above 0, at most 1")
    if not 0.0 < params.repetition_penalty < inf:
        return _bad("repetition_penalty", params.repetition_penalty, "above 0, finite")
    if params.top_k < -1:
        return _bad("top_k", params.top_k, "at least 1, or 0 to consider all tokens")
    if params.n != 1:
        return _bad("n", params.n, "1", "use generate, which sends one request per sequence")
    if params.seed is not None and not SEED_MINIMUM <= params.seed <= SEED_MAXIMUM:
        return _bad("seed", params.seed, "64-bit signed integers")
    return None


def _check_lengths(params: SamplingParams, limits: RequestLimits) -> FieldProblem | None:
    most, least = params.max_tokens, params.min_tokens
    if most is None:
        return _bad("max_tokens", "nil", "at least 1", "say how many tokens may be generated")
    if not 1 <= most <= MAX_COUNT:
        return _bad("max_tokens", most, f"1 to {MAX_COUNT}")
    if not 0 <= least <= min(most, limits.max_model_len):
        return _bad(
            "min_tokens",
            least,
            f"0 to max_tokens ({most}) and max_model_len ({limits.max_model_len})",
        )
    if params.stream_interval is not None and not 1 <= params.stream_interval <= MAX_COUNT:
        return _bad("stream_interval", params.stream_interval, f"1 to {MAX_COUNT}")
    if not 0 <= params.output_text_buffer_length <= MAX_COUNT:
        return _bad(
            "output_text_buffer_length", params.output_text_buffer_length, f"0 to {MAX_COUNT}"
        )
    budget = params.thinking_token_budget
    if budget is not None and not -1 <= budget <= MAX_COUNT:
        return _bad("thinking_token_budget", budget, "0 or more, or -1 for no bound")
    return None


def _check_token_ids(params: SamplingParams, vocab_size: int) -> FieldProblem | None:
    if (
        params.stop_token_ids
        or params.all_stop_token_ids
        or params.logit_bias
        or params.allowed_token_ids
        or params.logprob_token_ids
    ):
        problem = _check_lists(params, vocab_size)
        if problem:
            return problem
    if params.eos_token_id is not None and not 0 <= params.eos_token_id < vocab_size:
        return _bad("_eos_token_id", params.eos_token_id, f"0 to {vocab_size - 1}")
    if params.allowed_token_ids is not None and not params.allowed_token_ids:
        return _bad("allowed_token_ids", "an empty array", "nil, or at least one token id")
    if params.logit_bias:
        for token, bias in params.logit_bias.items():
            if not bias < inf:  # nan or inf leaves no distribution to sample from
                return _bad(f"logit_bias[{token}]", bias, "finite numbers or -inf")
    if params.bad_words_token_ids:
        return _check_bad_words(params.bad_words_token_ids, vocab_size)
    return None


def _check_lists(params: SamplingParams, vocab_size: int) -> FieldProblem | None:
    lists: tuple[tuple[str, Collection[int] | None, int], ...] = (
        ("stop_token_ids", params.stop_token_ids, MAX_STOP_TOKEN_IDS),
        ("_all_stop_token_ids", params.all_stop_token_ids, MAX_STOP_TOKEN_IDS),
        ("logit_bias", params.logit_bias, MAX_LOGIT_BIAS),
        ("allowed_token_ids", params.allowed_token_ids, MAX_ALLOWED_TOKEN_IDS),
        ("logprob_token_ids", params.logprob_token_ids, MAX_LOGPROB_TOKEN_IDS),
    )
    for name, ids, longest in lists:
        if ids:
            problem = _check_ids(name, ids, longest, vocab_size)
            if problem:
                return problem
    return None


def _check_ids(
    name: str, ids: Collection[int], longest: int, vocab_size: int
) -> FieldProblem | None:
    if len(ids) > longest:
        return _bad(name, f"{len(ids)} token ids", f"at most {longest}")
    low, high = min(ids), max(ids)
    if low < 0 or high >= vocab_size:
        return _bad(
            name,
            f"token id {low if low < 0 else high}",
            f"0 to {vocab_size - 1}",
            "use this model's tokenizer",
        )
    return None


def _check_bad_words(words: list[list[int]], vocab_size: int) -> FieldProblem | None:
    name = "_bad_words_token_ids"
    if len(words) > MAX_BAD_WORDS:
        return _bad(name, f"{len(words)} words", f"at most {MAX_BAD_WORDS}")
    if not all(words):
        return _bad(name, "a word without tokens", "at least one token id per word")
    return _check_ids(name, [token for word in words for token in word],
                      MAX_BAD_WORD_TOKENS, vocab_size)  # fmt: skip


def _check_text(params: SamplingParams) -> FieldProblem | None:
    stop = params.stop
    if stop:
        if isinstance(stop, list) and not all(stop):
            return _bad("stop", "an empty string", "non-empty strings")
        if not params.detokenize:
            return _bad("detokenize", "false", "true when there are stop strings")
    elif stop == "":
        return _bad("stop", "an empty string", "non-empty strings")
    if params.bad_words and not all(params.bad_words):
        return _bad("bad_words", "an empty string", "non-empty strings")
    if params.structured_outputs is not None:
        return _check_structured(params.structured_outputs)
    return None


def _check_structured(wanted: StructuredOutputs) -> FieldProblem | None:
    name = "structured_outputs"
    constraints = (
        wanted.json, wanted.regex, wanted.choice, wanted.grammar, wanted.json_object,
        wanted.structural_tag,
    )  # fmt: skip
    count = sum(constraint is not None for constraint in constraints)
    if count != 1:
        return _bad(name, f"{count} constraints", "exactly one")
    if not wanted.backend:
        return _bad(f"{name}._backend", "nil", "the name of a grammar library", "try xgrammar")
    if wanted.json_object is False:
        return _bad(f"{name}.json_object", "false", "true, or nil")
    if wanted.choice is not None and (not wanted.choice or not all(wanted.choice)):
        return _bad(f"{name}.choice", "an empty choice", "non-empty strings, at least one")
    if wanted.choice is not None and wanted.backend in WITHOUT_CHOICE:
        return _bad(
            f"{name}.choice",
            "a choice",
            f"nil with {wanted.backend}, whose engines know grammars only",
            """send grammar='root ::= "yes" | "no"' in its place""",
        )
    for field, spec, deepest in (
        ("json", wanted.json, MAX_NESTING),
        ("structural_tag", wanted.structural_tag, TAG_NESTING),
    ):
        if spec is not None and nests_deeper(spec, deepest):
            return _bad(f"{name}.{field}", "deeper nesting", f"at most {deepest} levels")
    return None


def nests_deeper(spec: str | dict[str, Any] | list[Any], deepest: int) -> bool:
    """Say whether objects and arrays nest deeper than `deepest` levels; a str is JSON."""
    level: list[Any]
    if isinstance(spec, str):
        try:
            level = [msgspec.json.decode(spec)]
        except RecursionError:
            return True
        except msgspec.DecodeError:
            return False  # the grammar library reports what is not JSON
    else:
        level = [spec]
    for _ in range(deepest):
        level = [child for node in level for child in _children(node)]
        if not level:
            return False
    return True


def _children(node: Any) -> Iterable[Any]:
    inner = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return [child for child in inner if isinstance(child, dict | list)]


def _check_rest(params: SamplingParams, prompt_length: int) -> FieldProblem | None:
    if params.trace_decode_token_ids is not None:
        return _bad("trace_decode_token_ids", "a trace", "nil", "replay is for debugging engines")
    if not 0 <= params.routed_experts_prompt_start <= prompt_length:
        return _bad(
            "routed_experts_prompt_start",
            params.routed_experts_prompt_start,
            f"0 to the prompt's length ({prompt_length})",
        )
    return _check_repetition(params.repetition_detection) or _check_extra(params.extra_args)


def _check_repetition(wanted: RepetitionDetection | None) -> FieldProblem | None:
    name = "repetition_detection"
    if wanted is None:
        return None
    if not 0 <= wanted.min_pattern_size <= wanted.max_pattern_size <= MAX_COUNT:
        return _bad(
            f"{name}.min_pattern_size",
            wanted.min_pattern_size,
            f"0 to max_pattern_size ({wanted.max_pattern_size})",
        )
    if wanted.max_pattern_size and wanted.min_count < 2:
        return _bad(f"{name}.min_count", wanted.min_count, "at least 2")
    return None


def _check_extra(extra: dict[str, Any] | None) -> FieldProblem | None:
    if not extra:
        return None
    if nests_deeper(extra, MAX_NESTING):
        return _bad("extra_args", "deeper nesting", f"at most {MAX_NESTING} levels")
    for key in ("kv_transfer_params", "ec_transfer_params"):
        if not isinstance(extra.get(key), dict | None):
            return _bad(f"extra_args.{key}", type(extra[key]).__name__, "a map, or nil")
    pending: list[Any] = [extra]
    seen: set[int] = set()
    while pending:
        value = pending.pop()
        if isinstance(value, dict | list | tuple):
            if id(value) not in seen:
                seen.add(id(value))
                pending += value
                pending += value.values() if isinstance(value, dict) else ()
        elif isinstance(value, int) and not -(2**63) <= value < 2**64:
            return _bad("extra_args", value, "integers of 64 bits")
        elif isinstance(value, float) and not isfinite(value):
            return _bad("extra_args", value, "finite numbers")
    return None
