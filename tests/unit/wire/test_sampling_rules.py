"""The ranges of sampling parameters: the last value that passes and the first that does not."""

import struct
from math import inf, nan

import pytest

from enginecore_wire.problems import RequestLimits
from enginecore_wire.requests import RepetitionDetection, SamplingParams, StructuredOutputs
from enginecore_wire.sampling_rules import check_sampling
from enginecore_wire.tensors import Tensor

VOCAB = 2000
LIMITS = RequestLimits(vocab_size=VOCAB, max_model_len=64)
PROMPT = 3


def _nested(levels):
    return {"a": _nested(levels - 1)} if levels > 1 else {}


def _rows(values, shape=(2, 2), dtype="<i4", code="i"):
    return Tensor(dtype, shape, struct.pack(f"<{len(values)}{code}", *values))


def _choice(**changes):
    given = {"choice": ["a"], "backend": "guidance"}
    return StructuredOutputs(**(given | changes))


def _json(spec):
    return StructuredOutputs(json=spec, backend="xgrammar")


RANGES = {
    "temperature": ([0.0, 0.001, 2.0], [-0.01, 2.01, nan, inf, 5.0]),
    "top_p": ([0.001, 1.0], [0.0, 1.01, nan, -1.0]),
    "top_k": ([-1, 0, 1, 2**40], [-2]),
    "min_p": ([0.0, 1.0], [-0.1, 1.1, nan]),
    "presence_penalty": ([-2.0, 2.0], [-2.1, 2.1, nan]),
    "frequency_penalty": ([-2.0, 2.0], [-2.1, 2.1, nan]),
    "repetition_penalty": ([0.1, 10.0], [0.0, -1.0, inf, nan]),
    "n": ([1], [0, 2, -1]),
    "seed": ([None, -1, 0, 2**63 - 1, -(2**63)], [2**63, -(2**63) - 1]),
    "max_tokens": ([1, 2**31 - 1], [None, 0, -1, 2**31]),
    "min_tokens": ([0, 16], [-1, 17]),
    "stream_interval": ([None, 1], [0]),
    "thinking_token_budget": ([None, -1, 0, 5], [-2, 2**31]),
    "logprobs": ([None, 0, 20], [-1, 21, -2]),
    "prompt_logprobs": ([None, 0, 20], [-1, 21, -2]),
    "stop_token_ids": ([None, [], [0, VOCAB - 1], [1] * 128], [[VOCAB], [-1], [1] * 129]),
    "allowed_token_ids": ([None, [0, VOCAB - 1], [1] * 1024], [[], [VOCAB], [-1], [1] * 1025]),
    "logprob_token_ids": ([None, [], [0, VOCAB - 1], [1] * 128], [[VOCAB], [-1], [1] * 129]),
    "trace_decode_token_ids": ([None], [[1], []]),
    "routed_experts_prompt_start": ([0, PROMPT], [-1, PROMPT + 1]),
    "stop": ([None, [], ["a"], "a"], ["", ["a", ""]]),
    "bad_words": ([None, [], ["a"]], [["a", ""]]),
}
PRIVATE = {
    "eos_token_id": ([None, 0, VOCAB - 1], [-1, VOCAB]),
    "all_stop_token_ids": ([[], [0, VOCAB - 1]], [[VOCAB], [-1], [1] * 129]),
    "bad_words_token_ids": (
        [None, [], [[0], [1, VOCAB - 1]], [[1] * 8] * 128],
        [[[]], [[1], []], [[VOCAB]], [[-1]], [[1]] * 129, [[1] * 1025]],
    ),
}
NESTED = {
    "logit_bias": (
        [None, {}, {0: -100.0, VOCAB - 1: 100.0}, {5: -inf}, dict.fromkeys(range(1024), 1.0)],
        [{VOCAB: 1.0}, {-1: 1.0}, {5: nan}, {5: inf}, dict.fromkeys(range(1025), 1.0)],
    ),
    "repetition_detection": (
        [None, RepetitionDetection(), RepetitionDetection(8, 2, 2), RepetitionDetection(8, 0, 3)],
        [RepetitionDetection(-1, -1, 2), RepetitionDetection(2, 3, 2), RepetitionDetection(8, 2, 1),
         RepetitionDetection(8, -1, 2)],
    ),
    "extra_args": (
        [None, {}, {"kv_transfer_params": {"a": [1]}}, {"x": [-(2**63), 2**64 - 1, 1.5, "s"]}],
        [{"x": 2**64}, {"x": [{"y": -(2**63) - 1}]}, {2**64: 1}, {"x": (nan,)},
         {"kv_transfer_params": [1]}, {"ec_transfer_params": "s"}, {"x": _nested(64)}],
    ),
    "structured_outputs": (
        [None, _choice(), _json({"type": "object"}), _json("{}"), _json("not JSON"),
         _json(_nested(64)), StructuredOutputs(regex="a+", backend="guidance"),
         StructuredOutputs(json_object=True, backend="xgrammar"),
         StructuredOutputs(structural_tag="[" * 80 + "]" * 80, backend="xgrammar")],
        [StructuredOutputs(backend="xgrammar"), _choice(regex="a"), _choice(backend=None),
         _choice(backend=""), _choice(backend="xgrammar"), _choice(choice=[]),
         _choice(choice=["a", ""]), _json(_nested(65)),
         _json("[" * 65 + "]" * 65), _json("[" * 100_000 + "]" * 100_000),
         StructuredOutputs(json_object=False, backend="xgrammar"),
         StructuredOutputs(structural_tag="[" * 81 + "]" * 81, backend="xgrammar")],
    ),
    "prompt_logprob_token_ids": (
        [None, _rows([1, 2, -1, VOCAB - 1]), _rows([1, 2], (2, 1), "<i8", "q")],
        [_rows([1, 2, 3, VOCAB]), _rows([1, 2, 3, -2]), _rows([1, 2], (1, 2)),
         _rows([], (2, 0)), _rows([1, 2], (2,)), _rows([0.0] * 4, (2, 2), "<f4", "f"),
         _rows([0] * 4, (2, 2), "int32"), _rows([0] * 42, (2, 21))],
    ),
}  # fmt: skip
TABLE = RANGES | PRIVATE | NESTED
GOOD = [(name, value) for name, (good, _) in TABLE.items() for value in good]
BAD = [(name, value) for name, (_, bad) in TABLE.items() for value in bad]


def _short(value):
    return str(value)[:40]


@pytest.mark.parametrize(("name", "value"), GOOD, ids=_short)
def test_last_value_that_passes(name, value):
    assert check_sampling(SamplingParams(**{name: value}), LIMITS, PROMPT) is None


@pytest.mark.parametrize(("name", "value"), BAD, ids=_short)
def test_first_value_that_does_not(name, value):
    problem = check_sampling(SamplingParams(**{name: value}), LIMITS, PROMPT)
    assert problem is not None
    wire_name = f"_{name}" if name in PRIVATE else name
    assert problem.field.startswith(f"sampling_params.{wire_name}")
    assert problem.message.startswith(f"{problem.field}: got ")
    assert "allowed: " in problem.message


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"max_tokens": 4, "min_tokens": 5}, "min_tokens"),
        ({"max_tokens": 2**20, "min_tokens": 65}, "min_tokens"),
        ({"stop": ["a"], "detokenize": False}, "detokenize"),
        ({"logprobs": 3, "logprob_token_ids": [1, 2]}, "logprobs"),
        ({"prompt_logprob_start": 0}, "prompt_logprob_start"),
        (
            {"prompt_logprob_start": -1, "prompt_logprob_token_ids": _rows([1] * 6, (3, 2))},
            "prompt_logprob_start",
        ),
        (
            {"prompt_logprob_start": 1, "prompt_logprob_token_ids": _rows([1] * 4)},
            "prompt_logprob_token_ids",
        ),
    ],
)
def test_fields_that_contradict_one_another(given, field):
    problem = check_sampling(SamplingParams(**given), LIMITS, PROMPT)
    assert problem is not None
    assert problem.field == f"sampling_params.{field}"


@pytest.mark.parametrize(
    "given",
    [
        {"logprobs": 2, "logprob_token_ids": [1, 2]},
        {"prompt_logprob_start": 1, "prompt_logprob_token_ids": _rows([1, 2], (1, 2))},
        {"repetition_detection": RepetitionDetection(4, 1, 2), "extra_args": {"a": 1}},
    ],
)
def test_fields_that_agree(given):
    assert check_sampling(SamplingParams(**given), LIMITS, PROMPT) is None


@pytest.mark.parametrize(
    ("most", "asked", "passes"),
    [(-1, -1, True), (-1, VOCAB, True), (-1, VOCAB + 1, False), (0, 0, True), (0, 1, False)],
)
@pytest.mark.parametrize("name", ["logprobs", "prompt_logprobs"])
def test_cap_on_logprobs_is_the_engines(name, most, asked, passes):
    limits = RequestLimits(vocab_size=VOCAB, max_model_len=64, max_logprobs=most)
    problem = check_sampling(SamplingParams(**{name: asked}), limits, PROMPT)
    assert (problem is None) == passes


def test_later_checks_run_when_earlier_optional_fields_are_set():
    params = SamplingParams(
        logit_bias={1: 1.0},
        structured_outputs=_choice(),
        repetition_detection=RepetitionDetection(4, 1, 2),
        extra_args={"x": 2**64},
    )
    problem = check_sampling(params, LIMITS, PROMPT)
    assert problem is not None
    assert problem.field == "sampling_params.extra_args"
