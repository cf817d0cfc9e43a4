"""The sampler against the definitions, written out token by token."""

from collections import Counter
from math import exp, inf, log
from typing import Any

import pytest
import torch

from enginecore_torch.sampler import Sampler, draw
from enginecore_torch.sequence import Sequence
from enginecore_wire.requests import EngineCoreRequest, SamplingParams

VOCAB = 12


def sequence(
    name: str = "a",
    prompt: tuple[int, ...] = (0, 1, 2),
    outputs: tuple[int, ...] = (),
    **params: Any,
) -> Sequence:
    made = Sequence(EngineCoreRequest(name, list(prompt)), SamplingParams(**params), 0)
    made.tokens += outputs
    return made


def logits(rows: int = 1, seed: int = 0, vocab: int = VOCAB) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 2


def reference(scores: list[float], params: SamplingParams) -> list[float]:
    """Return the distribution that temperature, min_p, top_k and top_p leave of `scores`."""
    scaled = [score / params.temperature for score in scores]
    order = sorted(range(len(scaled)), key=lambda i: -scaled[i])
    kept = {i for i in order if exp(scaled[i] - scaled[order[0]]) >= params.min_p}
    if params.top_k > 0:
        kept &= set(order[: params.top_k])
    total = sum(exp(scaled[i]) for i in kept)
    before, nucleus = 0.0, set()
    for i in (i for i in order if i in kept):
        if before < params.top_p:
            nucleus.add(i)
        before += exp(scaled[i]) / total
    weight = sum(exp(scaled[i]) for i in nucleus)
    return [exp(scaled[i]) / weight if i in nucleus else 0.0 for i in range(len(scaled))]


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 1.0},
        {"temperature": 0.3},
        {"temperature": 2.0},
        {"top_k": 3},
        {"top_k": 1},
        {"top_k": -1},
        {"top_p": 0.7},
        {"top_p": 0.01},
        {"min_p": 0.2},
        {"temperature": 0.7, "top_k": 6, "top_p": 0.8, "min_p": 0.05},
    ],
    ids=str,
)
def test_draw_follows_the_distribution(params: dict[str, Any]) -> None:
    """Evenly spread random numbers hit each token as often as its probability says."""
    chosen, rows = SamplingParams(**params), 4000
    scores = logits(seed=5)
    expected = reference(scores[0].tolist(), chosen)
    uniforms = [(row + 0.5) / rows for row in range(rows)]
    tokens = Counter(draw(scores.repeat(rows, 1), [chosen] * rows, uniforms))
    for token, probability in enumerate(expected):
        assert tokens[token] / rows == pytest.approx(probability, abs=1.5 / rows)
        assert (tokens[token] > 0) <= (probability > 0)


@pytest.mark.parametrize(
    "extreme",
    [
        {"top_p": 1e-300},
        {"top_p": 5e-324, "top_k": 3},
        {"min_p": 5e-324},
        {"min_p": 1.0, "top_p": 1e-8},
        {"temperature": 1e-5},
        {"top_k": 2**63},
    ],
)
def test_the_smallest_and_largest_values_draw_a_token(extreme: dict[str, Any]) -> None:
    scores = torch.tensor([[1.0, 3.0, 2.0, 0.0]])
    token = draw(scores, [SamplingParams(**extreme)], [0.0])[0]
    assert token == 1 or not extreme.keys() & {"top_p", "temperature"}


@pytest.mark.parametrize("top_p", [0.5, 0.9, 0.999])
def test_top_p_of_a_flat_distribution_looks_past_the_candidates(top_p: float) -> None:
    size = 5000
    scores = torch.linspace(0.0, 0.01, size).unsqueeze(0)
    tokens = draw(scores.repeat(2, 1), [SamplingParams(top_p=top_p)] * 2, [0.0, 1 - 1e-9])
    assert tokens[0] == pytest.approx(size * (1 - top_p), abs=30)
    assert tokens[1] == size - 1


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53])
def test_ends_of_the_range_never_draw_what_is_excluded(uniform: float) -> None:
    scores = torch.full((1, VOCAB), -inf)
    scores[0, 4:7] = torch.tensor([0.0, -80.0, 1.0])
    assert draw(scores, [SamplingParams()], [uniform])[0] in (4, 6)


def test_rows_are_independent() -> None:
    sampler = Sampler(seed=0)
    rows = logits(rows=4, seed=1)
    sequences = [
        sequence("greedy", temperature=0.0),
        sequence("one", temperature=1.0, top_k=1),
        sequence("allowed", temperature=1.0, allowed_token_ids=[7]),
        sequence("biased", temperature=0.0, logit_bias={9: 100.0}),
    ]
    before = rows.clone()
    tokens = [sampled.token_id for sampled in sampler.sample(rows, sequences)]
    assert tokens == [int(rows[0].argmax()), int(rows[1].argmax()), 7, 9]
    assert torch.equal(rows, before)


def shaped(scores: torch.Tensor, made: Sequence) -> list[float]:
    """Return what a request's masks, bias and penalties make of `scores`, token by token."""
    params, outputs = made.params, made.tokens[made.prompt_length :]
    result = []
    for token, value in enumerate(scores.tolist()):
        if params.allowed_token_ids and token not in params.allowed_token_ids:
            value = -inf
        for word in params.bad_words_token_ids or ():
            if word[-1] == token and outputs[len(outputs) - len(word) + 1 :] == word[:-1]:
                value = -inf
        value += (params.logit_bias or {}).get(token, 0.0)
        stops = {params.eos_token_id, *params.all_stop_token_ids, *(params.stop_token_ids or ())}
        if len(outputs) < params.min_tokens and token in stops:
            value = -inf
        if token in made.tokens:
            penalty = params.repetition_penalty
            value = value / penalty if value > 0 else value * penalty
        count = outputs.count(token)
        value -= params.frequency_penalty * count + params.presence_penalty * (count > 0)
        result.append(value)
    return result


@pytest.mark.parametrize(
    ("outputs", "params"),
    [
        ((), {"repetition_penalty": 1.5}),
        ((3, 3, 4), {"repetition_penalty": 0.5}),
        ((3, 3, 4), {"presence_penalty": 1.5}),
        ((3, 3, 4), {"frequency_penalty": 0.7}),
        ((), {"frequency_penalty": 0.7, "presence_penalty": -1.0}),
        ((), {"logit_bias": {2: 3.0, 5: -3.0, 7: -inf}}),
        ((), {"allowed_token_ids": [1, 5, 5, 9]}),
        ((), {"bad_words_token_ids": [[4], [5, 6]]}),
        ((9, 5), {"bad_words_token_ids": [[4], [5, 6], [9, 6, 7], [9, 5, 8]]}),
        ((1,), {"min_tokens": 2, "max_tokens": 4, "eos_token_id": 3, "all_stop_token_ids": [3, 8]}),
        ((1, 2), {"min_tokens": 2, "max_tokens": 4, "eos_token_id": 3}),
        (
            (3, 3, 4),
            {"repetition_penalty": 1.2, "presence_penalty": 0.4, "frequency_penalty": 0.3,
             "logit_bias": {3: 2.0}, "allowed_token_ids": [1, 2, 3, 4, 5]},
        ),
    ],
    ids=str,
)  # fmt: skip
def test_masks_and_penalties(outputs: tuple[int, ...], params: dict[str, Any]) -> None:
    """Seen through the log of how often each token is drawn from evenly spread numbers."""
    made = sequence(outputs=outputs, temperature=0.0, **params)
    sampler, scores = Sampler(seed=0), logits(seed=8)
    row = scores[0].clone()
    sampler._shaper(made).apply(row)
    assert row.tolist() == pytest.approx(shaped(scores[0], made), abs=1e-5)
    expected = max(range(VOCAB), key=lambda token: shaped(scores[0], made)[token])
    assert sampler.sample(scores, [made])[0].token_id == expected


def test_penalties_follow_the_tokens_as_they_come() -> None:
    made = sequence(frequency_penalty=1.0, temperature=0.0)
    sampler, scores = Sampler(seed=0), torch.zeros(1, VOCAB)
    drawn = []
    for _ in range(VOCAB):
        token = sampler.sample(scores, [made])[0].token_id
        assert token is not None
        made.tokens.append(token)
        drawn.append(token)
    assert sorted(drawn) == list(range(VOCAB))


def test_a_seed_repeats_itself_whatever_runs_beside() -> None:
    def tokens(company: int) -> list[int | None]:
        sampler = Sampler(seed=company)
        made = [sequence("seeded", seed=42)]
        made += [sequence(f"{i}", seed=None if i % 2 else i) for i in range(company)]
        rows = torch.zeros(len(made), VOCAB)
        return [sampler.sample(rows, made)[0].token_id for _ in range(20)]

    assert tokens(0) == tokens(3) == tokens(6)
    assert len(set(tokens(0))) > 3


def test_requests_without_seed_differ_and_the_engine_seed_repeats() -> None:
    def tokens(seed: int) -> list[int | None]:
        sampler = Sampler(seed)
        made = [sequence("a"), sequence("b", seed=-1)]
        steps = [sampler.sample(torch.zeros(2, VOCAB), made) for _ in range(20)]
        return [sampled.token_id for step in steps for sampled in step]

    assert tokens(1) == tokens(1) != tokens(2)
    assert tokens(1)[::2] != tokens(1)[1::2]


def test_forgetting_starts_a_seed_anew() -> None:
    sampler, made = Sampler(seed=0), sequence(seed=3)
    first = [sampler.sample(torch.zeros(1, VOCAB), [made])[0].token_id for _ in range(9)]
    sampler.forget("a")
    again = [sampler.sample(torch.zeros(1, VOCAB), [made])[0].token_id for _ in range(9)]
    assert first == again


@pytest.mark.parametrize("count", [0, 3, -1])
def test_logprobs_are_the_models_own(count: int) -> None:
    """Before bias and temperature: the sampled token first, then the most likely ones."""
    made = sequence(logprobs=count, temperature=0.5, logit_bias={11: 50.0})
    scores = logits(seed=2)
    (sampled,) = Sampler(seed=0).sample(scores, [made])
    assert sampled.token_id == 11
    assert sampled.logprobs is not None
    total = log(sum(exp(value) for value in scores[0].tolist()))
    right = [value - total for value in scores[0].tolist()]
    order = sorted(range(VOCAB), key=lambda token: -right[token])[: VOCAB if count < 0 else count]
    assert sampled.logprobs.token_ids.tolist() == [[11, *order]]
    assert sampled.logprobs.values.tolist()[0] == pytest.approx([right[t] for t in (11, *order)])
    assert sampled.logprobs.ranks.tolist() == [1 + sum(value > right[11] for value in right)]
    assert sampled.logprobs.values.dtype == "<f4"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("scores", "params"),
    [
        (torch.full((1, VOCAB), torch.nan), {"logprobs": 1}),
        (torch.zeros(1, VOCAB), {"allowed_token_ids": [3], "logit_bias": {3: -inf}}),
    ],
    ids=["nan", "nothing allowed"],
)
def test_nothing_to_draw_from(
    scores: torch.Tensor, params: dict[str, Any], temperature: float
) -> None:
    rows = torch.cat((scores, torch.zeros(1, VOCAB)))
    made = [
        sequence("a", temperature=temperature, **params),
        sequence("b", temperature=temperature),
    ]
    bad, good = Sampler(seed=0).sample(rows, made)
    assert bad.token_id is None
    assert good.token_id is not None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits(dtype: torch.dtype) -> None:
    scores = logits(rows=2, seed=3).to(dtype)
    made = [sequence("a", temperature=0.0), sequence("b", temperature=1.0, top_k=1)]
    tokens = [sampled.token_id for sampled in Sampler(seed=0).sample(scores, made)]
    assert tokens == scores.argmax(dim=-1).tolist()
