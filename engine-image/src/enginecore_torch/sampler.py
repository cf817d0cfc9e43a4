"""From logits to tokens, for all sequences of a step at once."""

from math import log
from random import Random
from typing import NamedTuple

import torch

from enginecore_torch.logprobs import sampled_logprobs
from enginecore_torch.penalties import RowShaper
from enginecore_torch.sequence import Sequence
from enginecore_wire.outputs import Logprobs
from enginecore_wire.requests import SamplingParams

GREEDY_BELOW = 1e-5
"""Temperatures below this one take the most likely token."""

NUCLEUS_CANDIDATES = 1024
"""Most likely tokens that top_p looks at before it sorts the whole vocabulary."""


class Sampled(NamedTuple):
    """The next token of a sequence; `token_id` is None if no token has any probability."""

    token_id: int | None
    logprobs: Logprobs | None = None


class Sampler:
    """Draws tokens by each request's parameters.

    Log-probabilities are those of the model, before masks, penalties and temperature. One
    random number is drawn per token, from the request's own generator if it has a seed, so
    its tokens do not depend on what else runs.
    """

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._seeded: dict[str, Random] = {}
        self._shapers: dict[str, RowShaper] = {}

    def forget(self, request_id: str) -> None:
        """Drop what is kept for a request that has ended."""
        self._seeded.pop(request_id, None)
        self._shapers.pop(request_id, None)

    def sample(self, logits: torch.Tensor, sequences: list[Sequence]) -> list[Sampled]:
        """Return the next token of each of `sequences`.

        Args:
            logits: shape [sequences, vocab_size], any floating-point dtype; not changed.
            sequences: those the rows belong to.
        """
        if all(_is_plain(sequence.params) for sequence in sequences):
            return [Sampled(token) for token in most_likely(logits)]
        scores = logits.to(torch.float32, copy=True)
        raw = {
            row: torch.log_softmax(scores[row], dim=-1)
            for row, sequence in enumerate(sequences)
            if sequence.params.logprobs is not None
        }
        for row, sequence in enumerate(sequences):
            if RowShaper.is_needed(sequence.params):
                self._shaper(sequence).apply(scores[row])
        tokens = self._draw(scores, sequences)
        return [
            self._result(raw.get(row), *pair)
            for row, pair in enumerate(zip(sequences, tokens, strict=True))
        ]

    def _result(self, raw: torch.Tensor | None, sequence: Sequence, token: int | None) -> Sampled:
        if raw is None or token is None:
            return Sampled(token)
        assert sequence.params.logprobs is not None
        return Sampled(token, sampled_logprobs(raw, token, sequence.params.logprobs))

    def _draw(self, scores: torch.Tensor, sequences: list[Sequence]) -> list[int | None]:
        tokens: list[int | None] = list(most_likely(scores))
        for row, possible in enumerate(scores.amax(dim=-1).isfinite().tolist()):
            if not possible:
                tokens[row] = None
        rows = [
            row
            for row, sequence in enumerate(sequences)
            if sequence.params.temperature >= GREEDY_BELOW and tokens[row] is not None
        ]
        if rows:
            chosen = [sequences[row] for row in rows]
            picked = scores if len(rows) == len(scores) else scores[rows]
            drawn = draw(picked, [s.params for s in chosen], [self._uniform(s) for s in chosen])
            for row, token in zip(rows, drawn, strict=True):
                tokens[row] = token
        return tokens

    def _shaper(self, sequence: Sequence) -> RowShaper:
        shaper = self._shapers.get(sequence.request_id)
        if shaper is None:
            shaper = self._shapers[sequence.request_id] = RowShaper(sequence)
        return shaper

    def _uniform(self, sequence: Sequence) -> float:
        seed = sequence.params.seed
        if seed is None or seed == -1:
            return self._random.random()
        source = self._seeded.get(sequence.request_id)
        if source is None:
            source = self._seeded[sequence.request_id] = Random(seed)
        return source.random()


def most_likely(logits: torch.Tensor) -> list[int]:
    """Return the token with the highest logit of each row, shape [rows, vocab_size]."""
    if logits.device.type == "cpu":  # numpy's argmax is 14 times faster than PyTorch's
        tokens: list[int] = logits.float().numpy().argmax(axis=-1).tolist()
    else:
        tokens = logits.argmax(dim=-1).tolist()
    return tokens


def draw(scores: torch.Tensor, params: list[SamplingParams], uniforms: list[float]) -> list[int]:
    """Return a token per row, drawn by temperature, min_p, top_k and top_p.

    Args:
        scores: logits after penalties, float32, shape [rows, vocab_size]; changed.
        params: one per row, temperatures above zero.
        uniforms: one number in [0, 1) per row; equal numbers give equal tokens.
    """
    device = scores.device
    scores /= torch.tensor([[p.temperature] for p in params], device=device)
    _cut_min_p(scores, [p.min_p for p in params])
    _cut_top_k(scores, [p.top_k for p in params])
    _cut_top_p(scores, [p.top_p for p in params])
    cumulative = torch.softmax(scores, dim=-1).cumsum(dim=-1)
    total = cumulative[:, -1:]
    # Strictly below the total, so that the token found has a probability above zero.
    target = torch.tensor(uniforms, device=device).unsqueeze(1) * total
    target = torch.minimum(target, torch.nextafter(total, torch.zeros_like(total)))
    tokens = torch.searchsorted(cumulative, target, right=True)
    drawn: list[int] = tokens.clamp_(max=scores.shape[1] - 1).squeeze(1).tolist()
    return drawn


def _cut_min_p(scores: torch.Tensor, min_p: list[float]) -> None:
    if not any(min_p):
        return
    room = torch.tensor([[log(p) if p else -torch.inf] for p in min_p], device=scores.device)
    scores.masked_fill_(scores < scores.amax(dim=-1, keepdim=True) + room, -torch.inf)


def _cut_top_k(scores: torch.Tensor, top_k: list[int]) -> None:
    size = scores.shape[1]
    rows = [row for row, k in enumerate(top_k) if 0 < k < size]
    if not rows:
        return
    counts = torch.tensor([[top_k[row]] for row in rows], device=scores.device)
    picked = scores[rows]
    floor = picked.topk(int(counts.max()), dim=-1).values.gather(1, counts - 1)
    scores[rows] = picked.masked_fill_(picked < floor, -torch.inf)


def _cut_top_p(scores: torch.Tensor, top_p: list[float]) -> None:
    rows = [row for row, p in enumerate(top_p) if p < 1.0]
    if not rows:
        return
    shares = torch.tensor([[top_p[row]] for row in rows], device=scores.device)
    picked = scores[rows]
    scores[rows] = picked.masked_fill_(picked < _nucleus_floor(picked, shares), -torch.inf)


def _nucleus_floor(scores: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """Return the lowest score of the fewest tokens that hold `shares` of the probability."""
    size = scores.shape[1]
    normaliser = scores.logsumexp(dim=-1, keepdim=True)
    for width in (min(NUCLEUS_CANDIDATES, size), size):
        top = scores.topk(width, dim=-1).values
        probabilities = (top - normaliser).exp()
        before = probabilities.cumsum(dim=-1) - probabilities
        if width == size or bool((before[:, -1:] >= shares).all()):
            break
    # At least the most likely one: a share too small for float32 is 0.
    count = (before < shares).sum(dim=-1, keepdim=True).clamp_(min=1)
    return top.gather(1, count - 1)


def _is_plain(params: SamplingParams) -> bool:
    """Whether the most likely token is all that is asked for."""
    return (
        params.temperature < GREEDY_BELOW
        and params.logprobs is None
        and not RowShaper.is_needed(params)
    )
