"""The EngineCore in this process, over a tiny model: ends, outputs, calls, memory."""

import gc
import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import psutil
import pytest
import torch

from enginecore_torch import attention
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
from support.tiny_llama import VOCAB_SIZE, write_tiny_llama
from support.torch_runs import generate, make_core, request, run, tokens_of

MAX_POSITIONS = 256
PROMPT = [5, 6, 7, 8]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("model"), MAX_POSITIONS)


@pytest.fixture(scope="module")
def shared(model: Path) -> EngineCore:
    """An engine for tests that leave it without requests."""
    return make_core(model)


@pytest.fixture
def core(shared: EngineCore) -> Iterator[EngineCore]:
    yield shared
    assert not shared.has_work()
    assert shared.load == (0, 0)


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


def test_aborting_says_nothing(core: EngineCore) -> None:
    core.add_request(request("a", PROMPT, max_tokens=100))
    assert core.step()[0].outputs[0].request_id == "a"
    core.abort_requests(["a"])
    assert not core.has_work()
    assert core.step() == {}


def test_abort_immediately(core: EngineCore) -> None:
    asked = request("a", PROMPT)
    asked.abort_immediately = True
    (output,) = run(core, asked)["a"]
    assert (output.new_token_ids, output.finish_reason) == ([], FinishReason.ABORT)


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


def test_the_cache_is_allocated_once(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    allocate, shapes = attention._zeros, []

    def counted(shape: tuple[int, ...], *more: Any) -> torch.Tensor:
        shapes.append(shape)
        return allocate(shape, *more)

    monkeypatch.setattr(attention, "_zeros", counted)
    core = make_core(model, num_blocks=14, block_size=4, max_model_len=48)
    cache = core._runner._cache

    def places() -> list[int]:
        views = [cache._storage, *cache._layers, *cache._tokens]
        return [view.untyped_storage().data_ptr() for view in views]

    before, preempted = places(), False
    assert len(set(before)) == 1
    for turn in range(20):
        asked = [request(f"{turn}-{i}", [turn, i] * 5, max_tokens=30) for i in range(3)]
        events = [
            e.type for parts in run(core, *asked).values() for p in parts for e in p.events or ()
        ]
        preempted |= EventType.PREEMPTED in events
        core.call("reset_prefix_cache", [])
    assert preempted
    assert places() == before
    assert core._runner._cache is cache
    assert len(shapes) == 1


@pytest.mark.parametrize(
    ("method", "args", "value"),
    [
        ("get_supported_tasks", [], ["generate"]),
        ("get_weight_version", [], "default"),
        ("list_loras", [], []),
        ("is_sleeping", [], False),
        ("is_scheduler_paused", [], False),
        ("reset_prefix_cache", [], True),
        ("reset_prefix_cache", [False, False], True),
        ("reset_mm_cache", [], None),
        ("reset_encoder_cache", [], None),
        ("execute_dummy_batch", [], None),
    ],
)
def test_calls(core: EngineCore, method: str, args: list[Any], value: Any) -> None:
    assert core.call(method, args) == value


@pytest.mark.parametrize(
    ("mode", "during"),
    [("abort", {"old": FinishReason.ABORT}), ("wait", {"old": FinishReason.LENGTH}), ("keep", {})],
)
@pytest.mark.parametrize(
    ("pause", "resume"),
    [
        (lambda mode: ("pause_scheduler", [mode, True]), "resume_scheduler"),
        (lambda mode: ("sleep", [0, mode]), "wake_up"),
    ],
    ids=["pause", "sleep"],
)
def test_pausing(
    core: EngineCore, mode: str, during: dict[str, FinishReason], pause: Any, resume: str
) -> None:
    core.add_request(request("old", PROMPT, max_tokens=5))
    core.step()
    core.call(*pause(mode))
    assert core.call("is_sleeping", []) is True
    core.add_request(request("new", PROMPT, max_tokens=5))
    ended = {}
    while core.has_work():
        for message in core.step().values():
            for output in message.outputs:
                ended[output.request_id] = output.finish_reason
    assert ended == during
    core.call(resume, [])
    assert core.call("is_scheduler_paused", []) is False
    left = {"new"} if during else {"old", "new"}
    while core.has_work():
        for message in core.step().values():
            left -= {o.request_id for o in message.outputs if o.finish_reason is not None}
    assert not left


def test_resetting_the_cache_with_requests_running(core: EngineCore) -> None:
    core.add_request(request("a", PROMPT, max_tokens=8))
    core.step()
    assert core.call("reset_prefix_cache", []) is False
    assert core.call("reset_prefix_cache", [True]) is True
    assert core.load == (1, 0)
    while core.has_work():
        core.step()


def test_profile_writes_a_trace(model: Path, tmp_path: Path) -> None:
    core = make_core(model, profile_dir=tmp_path / "traces")
    with pytest.raises(ValueError, match="profile: it is not running"):
        core.call("profile", [False])
    core.call("profile", [True, "../outside"])
    run(core, request("a", PROMPT, max_tokens=2))
    core.call("profile", [False, "../outside"])
    (trace,) = (tmp_path / "traces").iterdir()
    names = {event.get("name") for event in json.loads(trace.read_text())["traceEvents"]}
    assert "aten::embedding" in names


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


@pytest.mark.timeout(240)
def test_memory_stays_flat_over_a_thousand_requests(model: Path) -> None:
    core, random = make_core(model, max_num_seqs=32), Random(5)

    def hundred(turn: int) -> None:
        asked = []
        for index in range(100):
            prompt = [random.randrange(VOCAB_SIZE) for _ in range(random.randrange(1, 40))]
            params: dict[str, Any] = {"max_tokens": random.randrange(1, 8)}
            if index % 3 == 0:
                params |= {"temperature": 1.0, "seed": index, "top_p": 0.9, "logprobs": 2,
                           "repetition_penalty": 1.1, "prompt_logprobs": 1}  # fmt: skip
            asked.append(request(f"{turn}-{index}", prompt, **params))
        run(core, *asked)
        assert core.load == (0, 0)
        assert core.gauges().kv_cache_usage == 0.0

    for turn in range(4):  # every kernel that these sizes need is compiled once
        hundred(turn)
    before = resident()
    for turn in range(4, 14):
        hundred(turn)
    assert resident() - before < 16 << 20
    runner = core._runner
    assert not runner._prompt_logprobs
    assert not runner._sampler._seeded
    assert not runner._sampler._shapers


def resident() -> int:
    """Return the bytes this process holds once garbage is gone."""
    gc.collect()
    bytes_: int = psutil.Process().memory_info().rss
    return bytes_


def test_results_need_no_gradients(core: EngineCore) -> None:
    run(core, request("a", PROMPT, logprobs=1, temperature=1.0))
    assert torch.is_grad_enabled()
