"""Two ranks of a dense model: requests go to both, calls reach both, answers are the same."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from enginecore_client.errors import UtilityError
from enginecore_wire.outputs import FinishReason
from enginecore_wire.requests import EngineCoreRequest
from support.faces import Face, params
from support.vllm_engines import RANKS

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(900),
    pytest.mark.may_leak("processes", "threads", "sockets", reason="engines are shared"),
]

PROMPT = [504, 3575, 282, 4649, 314]
MANY = 8


def read(stream: Any) -> list[int]:
    """Return all tokens of a stream that ends as it should."""
    outputs = list(stream)
    assert outputs[-1].finish_reason is FinishReason.LENGTH
    return [token for output in outputs for token in output.new_token_ids]


def test_both_ranks_give_the_same_answer(face: Face) -> None:
    answers = [
        read(face.generate(PROMPT, params(16), data_parallel_rank=rank)) for rank in range(RANKS)
    ]
    assert len(answers[0]) == 16
    assert answers[0] == answers[1]


def test_requests_at_once_are_shared_out(face: Face) -> None:
    streams = [face.generate(PROMPT, params(24)) for _ in range(MANY)]
    with ThreadPoolExecutor(MANY) as pool:
        answers = list(pool.map(read, streams))
    assert all(answer == answers[0] for answer in answers)


def test_messages_name_the_rank_they_are_from(face: Face) -> None:
    names = {f"{rank}-{number}": rank for rank in range(RANKS) for number in range(MANY // RANKS)}
    for name, rank in names.items():
        face.add(
            EngineCoreRequest(name, PROMPT, sampling_params=params(6), data_parallel_rank=rank)
        )
    tokens: Counter[str] = Counter()
    left = set(names)
    while left:
        message = face.get_output()
        for output in message.outputs:
            assert message.engine_index == names[output.request_id]
            tokens[output.request_id] += len(output.new_token_ids)
            if output.finish_reason is not None:
                left.discard(output.request_id)
    assert tokens == dict.fromkeys(names, 6)


def test_unnamed_requests_are_balanced(face: Face) -> None:
    names = [f"free-{number}" for number in range(MANY)]
    for name in names:
        face.add(EngineCoreRequest(name, PROMPT, sampling_params=params(12)))
    ranks: dict[str, int] = {}
    left = set(names)
    while left:
        message = face.get_output()
        for output in message.outputs:
            ranks[output.request_id] = message.engine_index
            if output.finish_reason is not None:
                left.discard(output.request_id)
    shares = Counter(ranks.values())
    assert sorted(shares) == list(range(RANKS))
    assert min(shares.values()) >= MANY // RANKS - 2


def test_calls_go_to_every_rank_and_must_agree(face: Face) -> None:
    assert face.call("is_sleeping") is False
    face.call("pause_scheduler", "keep", False, engine=1)
    with pytest.raises(UtilityError, match="disagree"):
        face.call("is_sleeping")
    assert [face.call("is_sleeping", engine=rank) for rank in range(RANKS)] == [False, True]
    face.call("resume_scheduler", engine=1)
    assert face.call("is_sleeping") is False
    assert face.call("collective_rpc", "check_health") == [None] * RANKS
