"""What an EngineCore over a tiny model keeps: one cache, and nothing of requests that ended."""

import gc
from pathlib import Path
from random import Random
from typing import Any

import psutil
import pytest
import torch

from enginecore_torch import attention
from enginecore_wire.outputs import EventType
from support.tiny_llama import VOCAB_SIZE
from support.torch_runs import make_core, request, run


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
