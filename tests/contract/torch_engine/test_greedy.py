"""Greedy tokens are those of transformers, however the engine comes to them."""

from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from enginecore_wire.outputs import EventType
from support.checkpoint import FILE_NAME, fetch_checkpoint
from support.torch_runs import Reference, generate, make_core, request, run, tokens_of

pytestmark = [pytest.mark.model, pytest.mark.timeout(400)]

LENGTHS = (1, 2, 5, 17, 33, 64, 150, 300)
NEW_TOKENS = 20


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference(fetch_checkpoint().parent, FILE_NAME)


@pytest.fixture(scope="module")
def prompts() -> dict[str, list[int]]:
    random = Random(1)
    return {str(n): [random.randrange(5, 49_000) for _ in range(n)] for n in LENGTHS}


@pytest.fixture(scope="module")
def expected(reference: Reference, prompts: dict[str, list[int]]) -> dict[str, list[int]]:
    """What the engine gives for each prompt alone, once transformers agrees with it."""
    core = make_core(fetch_checkpoint())
    alone = {}
    for name, prompt in prompts.items():
        alone[name] = generate(core, {name: prompt}, max_tokens=NEW_TOKENS)[name]
        assert alone[name] == reference.greedy_along(prompt, alone[name])
    return alone


@pytest.fixture(scope="module")
def directory(reference: Reference, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same weights as a safetensors directory of several files."""
    target = tmp_path_factory.mktemp("smollm2")
    reference.model.save_pretrained(target, max_shard_size="200MB")
    assert len(list(target.glob("*.safetensors"))) > 1
    return target


def test_alone(expected: dict[str, list[int]]) -> None:
    assert {len(tokens) for tokens in expected.values()} == {NEW_TOKENS}
    assert len({tuple(tokens) for tokens in expected.values()}) == len(LENGTHS)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="batched"),
        pytest.param({"max_num_batched_tokens": 48}, id="chunked"),
        pytest.param({"num_blocks": 24, "max_model_len": 330}, id="preempted"),
        pytest.param(
            {"num_blocks": 60, "block_size": 7, "max_num_batched_tokens": 100,
             "max_model_len": 400, "prefix_caching": False},
            id="preempted, chunked, odd blocks, no cache",
        ),
    ],
)  # fmt: skip
def test_together(
    settings: dict[str, Any], prompts: dict[str, list[int]], expected: dict[str, list[int]]
) -> None:
    core = make_core(fetch_checkpoint(), **settings)
    requests = [request(name, prompt, max_tokens=NEW_TOKENS) for name, prompt in prompts.items()]
    outputs = run(core, *requests)
    assert {name: tokens_of(parts) for name, parts in outputs.items()} == expected
    events = [e.type for parts in outputs.values() for part in parts for e in part.events or ()]
    assert (EventType.PREEMPTED in events) == ("num_blocks" in settings)


def test_again_from_the_prefix_cache(
    prompts: dict[str, list[int]], expected: dict[str, list[int]]
) -> None:
    core = make_core(fetch_checkpoint())
    requests = [request(name, prompt, max_tokens=NEW_TOKENS) for name, prompt in prompts.items()]
    for cached in (dict.fromkeys(LENGTHS, 0), {n: (n - 1) // 16 * 16 for n in LENGTHS}):
        outputs = run(core, *requests)
        assert {name: tokens_of(parts) for name, parts in outputs.items()} == expected
        stats = {int(name): parts[0].prefill_stats for name, parts in outputs.items()}
        assert {n: s.num_cached_tokens for n, s in stats.items() if s is not None} == cached


def test_from_safetensors(
    directory: Path, prompts: dict[str, list[int]], expected: dict[str, list[int]]
) -> None:
    core = make_core(directory)
    assert generate(core, prompts, max_tokens=NEW_TOKENS) == expected


def test_bfloat16_logits_are_close(directory: Path, reference: Reference) -> None:
    """In bfloat16 tokens may differ where two are about as likely; log-probabilities may not
    differ by more than the format's precision explains."""
    prompt = list(range(100, 140))
    core = make_core(directory, dtype="bfloat16")
    (outputs,) = run(core, request("a", prompt, max_tokens=1, logprobs=5)).values()
    logprobs = outputs[0].new_logprobs
    assert logprobs is not None
    right = reference.logprobs(prompt)[-1]
    ids = torch.tensor(logprobs.token_ids.tolist()[0])
    values = torch.tensor(logprobs.values.tolist()[0])
    assert torch.allclose(values, right[ids], atol=0.15)
