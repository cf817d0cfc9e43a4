"""FakeEngineCore: what it answers, when a request ends, who waits, what kills it."""

from typing import Any

import pytest

from enginecore_client import EngineCoreRequest, FinishReason, SamplingParams
from enginecore_client.testing import FakeEngineCore, FakeEngineDiedError
from enginecore_wire.tensors import Tensor


def request(name: str = "r", prompt: Any = (7, 11, 13), **params: Any) -> EngineCoreRequest:
    sampling = SamplingParams(**({"max_tokens": 5} | params))
    return EngineCoreRequest(name, list(prompt), sampling_params=sampling)


def run(core: FakeEngineCore) -> dict[str, list[tuple[list[int], FinishReason | None]]]:
    """Step until there is nothing to do; return tokens and reasons by request."""
    found: dict[str, list[tuple[list[int], FinishReason | None]]] = {}
    while core.has_work():
        for message in core.step().values():
            for output in message.outputs:
                seen = found.setdefault(output.request_id, [])
                seen.append((output.new_token_ids, output.finish_reason))
    return found


LENGTH, STOP = FinishReason.LENGTH, FinishReason.STOP

ENDS: list[tuple[dict[str, Any], dict[str, Any], list[int], FinishReason]] = [
    ({}, {}, [7, 11, 13, 7, 11], LENGTH),
    ({"tokens": 2}, {}, [7, 11], LENGTH),
    ({"max_model_len": 5}, {"max_tokens": 100}, [7, 11], LENGTH),
    ({"max_model_len": 3}, {"max_tokens": 100}, [7], LENGTH),
    ({}, {"stop_token_ids": [13]}, [7, 11, 13], STOP),
    ({}, {"eos_token_id": 11}, [7, 11], STOP),
    ({}, {"eos_token_id": 11, "ignore_eos": True}, [7, 11, 13, 7, 11], LENGTH),
]


@pytest.mark.parametrize(("settings", "params", "tokens", "reason"), ENDS)
def test_where_an_answer_ends(settings, params, tokens: list[int], reason: FinishReason) -> None:
    core = FakeEngineCore(**settings)
    core.add_request(request(**params))
    outputs = run(core)["r"]
    assert [token for new, _ in outputs for token in new] == tokens
    assert [each for _, each in outputs] == [None] * (len(tokens) - 1) + [reason]


def test_an_answer_of_the_tests_own() -> None:
    core = FakeEngineCore()
    core.answer = lambda asked: [len(asked.prompt_token_ids or ()), 99]
    core.add_request(request("whole"))
    core.add_request(request("cut", max_tokens=1))
    assert run(core) == {"whole": [([3], None), ([99], STOP)], "cut": [([3], LENGTH)]}
    core.answer = lambda _asked: []
    with pytest.raises(ValueError, match="answer: got no tokens"):
        core.add_request(request("empty"))


def test_who_is_over_the_limit_waits() -> None:
    core = FakeEngineCore(max_num_seqs=1)
    for name in ("a", "b"):
        core.add_request(request(name, max_tokens=1))
    (first,) = core.step().values()
    assert [o.request_id for o in first.outputs] == ["a"]
    stats = first.scheduler_stats
    assert stats is not None
    assert (stats.num_running_reqs, stats.num_waiting_reqs) == (0, 1)
    assert run(core) == {"b": [([7], LENGTH)]}


def test_aborts_are_silent_and_the_end_is_not() -> None:
    core = FakeEngineCore()
    for name in ("a", "b"):
        core.add_request(request(name))
    core.abort_requests(["a", "unknown"])
    core.shutdown()
    assert run(core) == {"b": [([], FinishReason.ABORT)]}
    assert core.journal == [("add", "a"), ("add", "b"), ("abort", ["a", "unknown"])]


@pytest.mark.parametrize("mode", ["abort", "wait", "keep"])
def test_pauses(mode: str) -> None:
    core = FakeEngineCore()
    core.add_request(request("before", max_tokens=2))
    core.call("pause_scheduler", [mode, False])
    core.add_request(request("during", max_tokens=1))
    assert core.call("is_scheduler_paused", []) is core.call("is_sleeping", []) is True
    expected = {"abort": [([], FinishReason.ABORT)], "wait": [([7], None), ([11], LENGTH)]}
    assert run(core).get("before") == expected.get(mode)
    core.call("resume_scheduler", [])
    assert run(core)["during"] == [([7], LENGTH)]


def test_calls() -> None:
    core = FakeEngineCore()
    core.results |= {"is_sleeping": True, "sleep": lambda level: level + 1, "wake_up": OSError("x")}
    assert core.call("is_sleeping", []) is True
    assert core.call("sleep", [1]) == 2
    assert core.call("collective_rpc", ["echo", None, [b"x"]]) == [b"x"]
    assert core.call("collective_rpc", ["echo", None, [], {"value": 5}]) == [5]
    for method, args in (("wake_up", []), ("pin_lora", [1]), ("collective_rpc", ["nothing"]),
                         ("pause_scheduler", ["soon"])):  # fmt: skip
        with pytest.raises((OSError, ValueError)):
            core.call(method, args)
    assert core.calls[1] == ("sleep", [1])


POISON = {
    "running id": request("taken"),
    "token": request("a", [1, 1000]),
    "prompt": request("a", [1] * 3000),
    "nothing": request("a", []),
    "embeddings": EngineCoreRequest(
        "a", None, sampling_params=SamplingParams(max_tokens=1),
        prompt_embeds=Tensor("float32", (1, 4), bytes(16)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", POISON)
def test_what_kills_it(kind: str) -> None:
    core = FakeEngineCore()
    core.add_request(request("taken"))
    with pytest.raises(FakeEngineDiedError):
        core.add_request(POISON[kind])


def test_embeddings_where_they_are_taken() -> None:
    core = FakeEngineCore(hidden_size=4)
    core.add_request(POISON["embeddings"])
    assert run(core) == {"a": [([0], LENGTH)]}


def test_a_request_without_parameters_ends_with_an_error() -> None:
    core = FakeEngineCore()
    core.add_request(EngineCoreRequest("a", [1]))
    core.add_request(request("b", max_tokens=None))
    assert run(core) == {name: [([], FinishReason.ERROR)] for name in ("a", "b")}
