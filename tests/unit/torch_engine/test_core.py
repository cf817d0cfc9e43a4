"""The EngineCore in this process, over a tiny model: what it takes, ends, outputs."""

import time
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from enginecore_torch.build import build_engine
from enginecore_torch.config import EngineConfig
from enginecore_torch.core import CoreOptions, EngineCore
from enginecore_wire.engine import EngineLike
from enginecore_wire.outputs import EventType, FinishReason
from enginecore_wire.requests import (
    EngineCoreRequest,
    LoRARequest,
    PoolingParams,
    RepetitionDetection,
    SamplingParams,
    StructuredOutputs,
)
from support.tiny_llama import VOCAB_SIZE
from support.torch_runs import MAX_POSITIONS, generate, make_core, request, run, tokens_of

PROMPT = [5, 6, 7, 8]


@pytest.fixture(scope="module")
def greedy(shared: EngineCore) -> list[int]:
    """The greedy tokens after PROMPT, all different up to the twelfth at least once."""
    return generate(shared, {"a": PROMPT}, max_tokens=12)["a"]


def test_it_is_an_engine(core: EngineCore) -> None:
    engine: EngineLike = core
    assert engine.step() == {}


@pytest.mark.parametrize(
    ("place", "params", "length", "reason"),
    [
        (3, {"eos": True}, 4, (FinishReason.STOP, False)),
        (3, {"eos": True, "ignore_eos": True}, 12, (FinishReason.LENGTH, False)),
        (3, {"stop": True}, 4, (FinishReason.STOP, True)),
        (3, {"stop": True, "ignore_eos": True}, 4, (FinishReason.STOP, True)),
        (3, {"max_tokens": 1}, 1, (FinishReason.LENGTH, False)),
        (3, {"eos": True, "max_tokens": 4}, 4, (FinishReason.STOP, False)),
    ],
    ids=str,
)
def test_ends(
    core: EngineCore,
    greedy: list[int],
    place: int,
    params: dict[str, Any],
    length: int,
    reason: tuple[FinishReason, bool],
) -> None:
    token = greedy[place]
    length = min(length, greedy.index(token) + 1) if length == 4 else length
    chosen = {"max_tokens": 12, "ignore_eos": False, **params}
    if chosen.pop("eos", False):
        chosen["eos_token_id"] = token
    if chosen.pop("stop", False):
        chosen["stop_token_ids"] = [token]
    (outputs,) = run(core, request("a", PROMPT, **chosen)).values()
    assert tokens_of(outputs) == greedy[:length]
    assert [output.finish_reason for output in outputs[:-1]] == [None] * (length - 1)
    assert outputs[-1].finish_reason is reason[0]
    assert outputs[-1].stop_reason == (token if reason[1] else None)


def test_min_tokens_puts_the_end_off(core: EngineCore, greedy: list[int]) -> None:
    end = greedy[0]
    params = {"ignore_eos": False, "eos_token_id": end, "all_stop_token_ids": [end]}
    (outputs,) = run(core, request("a", PROMPT, min_tokens=6, **params)).values()
    tokens = tokens_of(outputs)
    assert end not in tokens[:6]
    assert len(tokens) >= 6


def test_the_context_ends_it(core: EngineCore) -> None:
    prompt = [1] * (MAX_POSITIONS - 3)
    (outputs,) = run(core, request("a", prompt, max_tokens=99)).values()
    assert len(tokens_of(outputs)) == 3
    assert outputs[-1].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt_token_ids": [VOCAB_SIZE]}, r"prompt_token_ids\[0\]: got 256"),
        ({"prompt_token_ids": None}, "prompt_token_ids: got nil"),
        ({"prompt_token_ids": [1] * MAX_POSITIONS}, "prompt_token_ids: got 256 tokens"),
        ({"sampling_params": None}, "sampling_params: got neither"),
        ({"sampling_params": None, "pooling_params": PoolingParams(task="embed")}, "pooling_par"),
        ({"lora_request": LoRARequest("a", 1, "/a")}, "lora_request"),
        ({"sampling_params": SamplingParams(logprobs=21)}, "logprobs: got 21"),
        ({"sampling_params": SamplingParams(top_p=0.0)}, "top_p: got 0.0"),
        (
            {"sampling_params": SamplingParams(
                structured_outputs=StructuredOutputs(regex="a", backend="xgrammar"))},
            "structured_outputs: the torch engine does not support it",
        ),
        ({"sampling_params": SamplingParams(logprob_token_ids=[1])}, "logprob_token_ids: the"),
        ({"sampling_params": SamplingParams(thinking_token_budget=5)}, "thinking_token_budget"),
        (
            {"sampling_params": SamplingParams(repetition_detection=RepetitionDetection(4, 2, 3))},
            "repetition_detection: the torch engine",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_computed_is_refused(
    core: EngineCore, fields: dict[str, Any], message: str
) -> None:
    defaults = {"prompt_token_ids": PROMPT, "sampling_params": SamplingParams()}
    with pytest.raises(ValueError, match=message):
        core.add_request(EngineCoreRequest("a", **{**defaults, **fields}))


def test_ids_are_unique_among_unfinished_requests(core: EngineCore) -> None:
    core.add_request(request("a", PROMPT))
    with pytest.raises(ValueError, match="request_id: 'a' is running"):
        core.add_request(request("a", PROMPT))
    core.abort_requests(["a", "unknown"])
    assert len(tokens_of(run(core, request("a", PROMPT))["a"])) == 16


def test_no_token_left_to_draw_is_an_error_of_that_request_alone(core: EngineCore) -> None:
    bad = request("bad", PROMPT, allowed_token_ids=[3], logit_bias={3: float("-inf")})
    outputs = run(core, bad, request("good", PROMPT, max_tokens=3))
    assert [(o.new_token_ids, o.finish_reason) for o in outputs["bad"]] == [
        ([], FinishReason.ERROR)
    ]
    assert len(tokens_of(outputs["good"])) == 3


def test_outputs_by_client(model: Path) -> None:
    """Each client has its own message; the first carries the stats; ids that ended are listed."""
    ticks = count()
    built = build_engine(
        EngineConfig(model=model, threads=1), CoreOptions(7, report_finished=True),
        lambda: float(next(ticks)),
    )  # fmt: skip
    core = built.core
    for client, tokens in ((2, 1), (0, 2)):
        asked = request(f"r{client}", PROMPT, max_tokens=tokens)
        asked.client_index = client
        core.add_request(asked)
    first, second = core.step(), core.step()
    assert [(c, [o.request_id for o in m.outputs]) for c, m in first.items()] == [
        (2, ["r2"]), (0, ["r0"]),
    ]  # fmt: skip
    assert {message.engine_index for message in first.values()} == {7}
    assert first[2].finished_requests == ["r2"]
    assert first[0].finished_requests is None
    assert first[0].scheduler_stats is None
    stats = first[2].scheduler_stats
    assert stats is not None
    assert (stats.num_running_reqs, stats.num_waiting_reqs, stats.step_counter) == (1, 0, 1)
    assert 0 < stats.kv_cache_usage < 1
    assert (stats.prefix_cache_stats.requests, stats.prefix_cache_stats.queries) == (2, 8)
    assert second[0].finished_requests == ["r0"]
    events = first[0].outputs[0].events
    assert events is not None
    assert [event.type for event in events] == [EventType.QUEUED, EventType.SCHEDULED]
    assert events[0].timestamp < events[1].timestamp < first[0].timestamp < second[0].timestamp
    assert second[0].outputs[0].events is None
    assert second[0].outputs[0].prefill_stats is None


def test_aborting_is_followed_by_the_load_alone(core: EngineCore) -> None:
    core.add_request(request("a", PROMPT, max_tokens=100))
    assert core.step()[0].outputs[0].request_id == "a"
    core.abort_requests(["a", "unknown"])
    messages = core.step()
    assert list(messages) == [0]
    assert messages[0].outputs == []
    assert messages[0].finished_requests is None
    stats = messages[0].scheduler_stats
    assert stats is not None
    assert (stats.num_running_reqs, stats.num_waiting_reqs) == (0, 0)
    assert core.step() == {}
    core.abort_requests(["a"])
    assert not core.has_work()


def test_aborted_ids_are_listed_where_ends_are(model: Path) -> None:
    built = build_engine(
        EngineConfig(model=model, threads=1), CoreOptions(report_finished=True), time.monotonic
    )
    core = built.core
    for client in (1, 2):
        asked = request(f"r{client}", PROMPT, max_tokens=3)
        asked.client_index = client
        core.add_request(asked)
    core.step()
    core.abort_requests(["r1"])
    messages = core.step()
    assert {client: message.finished_requests for client, message in messages.items()} == {
        1: ["r1"], 2: None,
    }  # fmt: skip
    assert messages[1].outputs == []
    assert core.step()[2].finished_requests == ["r2"]


def test_abort_immediately_is_refused(core: EngineCore) -> None:
    asked = request("a", PROMPT)
    asked.abort_immediately = True
    with pytest.raises(ValueError, match="abort_immediately"):
        core.add_request(asked)


@pytest.mark.parametrize("chunk", [2048, 7])
def test_prompt_logprobs(model: Path, chunk: int) -> None:
    """They come once, whole, with the first token; chunks and sampling do not change them."""
    prompt = [Random(1).randrange(VOCAB_SIZE) for _ in range(40)]
    core = make_core(model, max_num_batched_tokens=chunk)
    outputs = run(core, request("a", prompt, prompt_logprobs=2, logprobs=2, max_tokens=3))["a"]
    found = outputs[0].new_prompt_logprobs
    assert found is not None
    assert all(output.new_prompt_logprobs is None for output in outputs[1:])
    assert found.token_ids.shape == found.values.shape == (39, 3)
    assert [row[0] for row in found.token_ids.tolist()] == prompt[1:]
    assert found.values.dtype == "float32"
    for place in (1, 20, 39):
        alone = run(core, request("b", prompt[:place], logprobs=2, max_tokens=1))["b"][0]
        assert alone.new_logprobs is not None
        values = alone.new_logprobs.values.tolist()[0]
        assert found.values.tolist()[place - 1][1:] == pytest.approx(values[1:], abs=1e-4)
        rank = found.ranks.tolist()[place - 1]
        own, best = found.values.tolist()[place - 1][:2]
        assert (rank == 1) == (own == pytest.approx(best))


def test_seeds_survive_preemption(model: Path) -> None:
    """With room for one and a half of them two seeded requests get the tokens they get alone."""
    settings = {"num_blocks": 14, "block_size": 4, "max_model_len": 48}
    params = {"temperature": 1.0, "max_tokens": 30}
    asked = [request(name, [i] * 10, seed=i, **params) for i, name in enumerate("abc")]
    core = make_core(model, **settings)
    alone = {each.request_id: tokens_of(run(core, each)[each.request_id]) for each in asked}
    together = run(make_core(model, **settings), *asked)
    events = [e.type for parts in together.values() for part in parts for e in part.events or ()]
    assert EventType.PREEMPTED in events
    assert {name: tokens_of(parts) for name, parts in together.items()} == alone


def test_shutdown_ends_every_request(model: Path) -> None:
    core = make_core(model)
    for name in "ab":
        core.add_request(request(name, PROMPT, max_tokens=100))
    core.step()
    core.shutdown()
    (message,) = core.step().values()
    assert [(o.request_id, o.finish_reason) for o in message.outputs] == [
        ("a", FinishReason.ABORT), ("b", FinishReason.ABORT),
    ]  # fmt: skip
    assert not core.has_work()


def test_results_need_no_gradients(core: EngineCore) -> None:
    run(core, request("a", PROMPT, logprobs=1, temperature=1.0))
    assert torch.is_grad_enabled()
