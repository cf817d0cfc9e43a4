"""A request is checked as well the second time as the first."""

import math
from typing import Any

import msgspec
import pytest

from enginecore_wire.checker import MOST_APPROVED, RequestChecker
from enginecore_wire.codec import MsgpackEncoder
from enginecore_wire.problems import RequestLimits
from enginecore_wire.requests import EngineCoreRequest, PoolingParams, SamplingParams
from enginecore_wire.tensors import Tensor
from enginecore_wire.validation import check_request

LIMITS = RequestLimits(vocab_size=100, max_model_len=50, hidden_size=2)
PLAIN = EngineCoreRequest(
    "name", [1, 2, 3], sampling_params=SamplingParams(), external_req_id="outer", arrival_time=1.0
)
EMBEDS = Tensor("float32", (3, 2), bytes(24))


def checked(checker: RequestChecker, request: EngineCoreRequest) -> str | None:
    """Return the field that is wrong, "" for what cannot be read, None for a good request."""
    bare = msgspec.structs.replace(
        request, request_id="", external_req_id="", arrival_time=0.0, prompt_token_ids=None
    )
    try:
        frames = MsgpackEncoder().encode(request)
        problem = checker.problem(request, frames, checker.outline(bare))
    except msgspec.DecodeError:
        return ""
    return None if problem is None else problem.field


@pytest.fixture
def checker() -> RequestChecker:
    checker = RequestChecker(LIMITS)
    assert checked(checker, PLAIN) is None
    return checker


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({}, None),
        ({"request_id": "", "prompt_token_ids": [99] * 49}, "request_id"),
        ({"request_id": "x" * 1025}, "request_id"),
        ({"external_req_id": "x" * 1025}, "external_req_id"),
        ({"external_req_id": 5}, ""),
        ({"arrival_time": math.inf}, "arrival_time"),
        ({"arrival_time": math.nan}, "arrival_time"),
        ({"arrival_time": -1.0}, "arrival_time"),
        ({"arrival_time": 7}, None),
        ({"prompt_token_ids": [99] * 49}, None),
        ({"prompt_token_ids": [0] * 50}, "prompt_token_ids"),
        ({"prompt_token_ids": []}, "prompt_token_ids"),
        ({"prompt_token_ids": None}, "prompt_token_ids"),
        ({"prompt_token_ids": (1, 2)}, None),
        ({"prompt_token_ids": [100]}, ""),
        ({"prompt_token_ids": [-1]}, ""),
        ({"prompt_token_ids": [True]}, ""),
        ({"prompt_token_ids": [1.0]}, ""),
        ({"prompt_token_ids": ["1"]}, ""),
        ({"prompt_token_ids": "text"}, ""),
        ({"prompt_token_ids": None, "prompt_embeds": EMBEDS}, None),
        ({"sampling_params": SamplingParams(top_p=2.0)}, "sampling_params.top_p"),
        ({"sampling_params": SamplingParams(temperature=math.nan)}, "sampling_params.temperature"),
        ({"sampling_params": SamplingParams(max_tokens=True)}, ""),
        ({"sampling_params": SamplingParams(routed_experts_prompt_start=3)}, None),
        ({"sampling_params": None}, "sampling_params"),
        ({"sampling_params": None, "pooling_params": PoolingParams(task="embed")}, None),
        ({"lora_request": None, "priority": 3}, None),
        ({"abort_immediately": True}, "abort_immediately"),
    ],
)
def test_each_part_is_held_to_its_rule_after_another_request_was_right(
    checker: RequestChecker, changes: dict[str, Any], field: str | None
) -> None:
    request = msgspec.structs.replace(PLAIN, **changes)
    assert checked(RequestChecker(LIMITS), request) == field
    for _ in range(2):
        assert checked(checker, request) == field
    assert checked(checker, PLAIN) is None


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(routed_experts_prompt_start=3),
        SamplingParams(
            logprobs=0, prompt_logprob_token_ids=Tensor("<i4", (2, 1), bytes(8)), prompt_logprobs=1
        ),
    ],
    ids=["routed experts", "rows of token ids"],
)
def test_what_the_prompts_length_bounds_is_checked_each_time(
    checker: RequestChecker, params: SamplingParams
) -> None:
    request = msgspec.structs.replace(PLAIN, sampling_params=params)
    assert checked(checker, request) is None
    request.prompt_token_ids = [1, 2]
    expected = check_request(request, LIMITS)
    assert expected is not None
    assert checked(checker, request) == expected.field


def test_the_longest_prompt_is_that_of_the_limits() -> None:
    checker = RequestChecker(msgspec.structs.replace(LIMITS, prompt_tokens=3))
    assert checked(checker, PLAIN) is None
    longer = msgspec.structs.replace(PLAIN, prompt_token_ids=[1, 2, 3, 4])
    assert checked(checker, longer) == "prompt_token_ids"


def test_what_was_approved_is_bounded(checker: RequestChecker) -> None:
    for seed in range(2 * MOST_APPROVED):
        params = SamplingParams(seed=seed)
        assert checked(checker, msgspec.structs.replace(PLAIN, sampling_params=params)) is None
        assert len(checker._approved) <= MOST_APPROVED


def test_values_that_only_an_encoder_knows_are_checked_each_time(checker: RequestChecker) -> None:
    numpy = pytest.importorskip("numpy")
    params = SamplingParams(extra_args={"bias": numpy.zeros(3)})
    request = msgspec.structs.replace(PLAIN, sampling_params=params)
    assert checked(checker, request) is None
    assert checked(checker, request) is None


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"prompt_token_ids": [99]}, None),
        ({"prompt_token_ids": [100]}, None),
        ({"prompt_token_ids": [0] * 50}, "prompt_token_ids"),
        ({"prompt_token_ids": []}, "prompt_token_ids"),
        ({"request_id": ""}, "request_id"),
        ({"arrival_time": math.inf}, "arrival_time"),
        ({"sampling_params": SamplingParams(temperature=-1.0)}, "sampling_params.temperature"),
    ],
)
@pytest.mark.parametrize("first", [True, False], ids=["first of its kind", "second"])
def test_token_ids_may_be_the_caller_s_care(
    first: bool, changes: dict[str, Any], field: str | None
) -> None:
    """All else is not."""
    trusting = RequestChecker(LIMITS, prompts=False)
    if not first:
        assert checked(trusting, PLAIN) is None
    assert checked(trusting, msgspec.structs.replace(PLAIN, **changes)) == field
