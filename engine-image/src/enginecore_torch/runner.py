"""Runs the model on what the scheduler chose, and samples."""

from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import torch

from enginecore_torch.attention import AttentionGroup, KVCache, make_group
from enginecore_torch.blocks import NULL_BLOCK
from enginecore_torch.logprobs import join, prompt_logprobs
from enginecore_torch.models.llama import ForwardBatch, LlamaModel
from enginecore_torch.sampler import Sampled, Sampler
from enginecore_torch.scheduler import ScheduledSequence
from enginecore_torch.sequence import Sequence
from enginecore_wire.outputs import PromptLogprobs

PROMPT_LOGPROB_ROWS = 128
"""Positions whose logits are held at once; those of a whole prompt could take gigabytes."""


class StepResult(NamedTuple):
    """What a step gave one scheduled sequence.

    `sampled` is None while the prompt is not complete; `prompt_logprobs` comes once, with
    the first token.
    """

    sampled: Sampled | None
    prompt_logprobs: PromptLogprobs | None = None


class ModelRunner:
    """Holds the model, its KV cache and the sampler."""

    def __init__(
        self, model: LlamaModel, cache: KVCache, sampler: Sampler, device: torch.device
    ) -> None:
        self._model = model
        self._cache = cache
        self._sampler = sampler
        self._device = device
        self._prompt_logprobs: dict[str, list[PromptLogprobs]] = {}

    def forget(self, request_id: str) -> None:
        """Drop what is kept for a request that has ended."""
        self._sampler.forget(request_id)
        self._prompt_logprobs.pop(request_id, None)

    @torch.inference_mode()
    def run(self, batch: list[ScheduledSequence]) -> list[StepResult]:
        """Compute one step; return a result for each item of `batch`, in its order."""
        if not batch:
            return []
        order = sorted(range(len(batch)), key=lambda index: _group_key(batch[index], self._cache))
        items = [batch[index] for index in order]
        hidden = self._model.forward(self._forward_batch(items), self._cache)
        ends = np.cumsum([item.count for item in items])
        for item, end in zip(items, ends.tolist(), strict=True):
            self._collect_prompt_logprobs(item, hidden[end - item.count : end])
        due = [index for index, item in enumerate(items) if item.samples]
        results = [StepResult(None)] * len(batch)
        if due:
            rows = hidden if len(due) == len(hidden) else hidden[ends[due] - 1]
            sequences = [items[index].sequence for index in due]
            sampled = self._sampler.sample(self._model.logits(rows), sequences)
            for index, token in zip(due, sampled, strict=True):
                collected = self._prompt_logprobs.pop(items[index].sequence.request_id, None)
                results[order[index]] = StepResult(token, join(collected) if collected else None)
        return results

    @torch.inference_mode()
    def run_dummy(self) -> None:
        """Compute one token that belongs to nobody, in the null block."""
        tables = np.full((1, 1), NULL_BLOCK)
        group, slots = self._group(0, tables, np.zeros((1, 1), dtype=np.int64))
        zero = torch.zeros(1, dtype=torch.int64, device=self._device)
        self._model.logits(
            self._model.forward(ForwardBatch(zero, zero, slots, [group]), self._cache)
        )

    def _forward_batch(self, items: list[ScheduledSequence]) -> ForwardBatch:
        token_ids, positions, slots, groups = [], [], [], []
        first = 0
        for _, members in groupby(items, key=lambda item: _group_key(item, self._cache)):
            group_items = list(members)
            count = group_items[0].count
            tables = _block_tables([item.sequence for item in group_items])
            starts = np.array([item.start for item in group_items])
            places = starts[:, None] + np.arange(count)
            token_ids += [
                token
                for item in group_items
                for token in item.sequence.tokens[item.start : item.start + count]
            ]
            positions.append(places.reshape(-1))
            group, group_slots = self._group(first, tables, places)
            groups.append(group)
            slots.append(group_slots)
            first += places.size
        return ForwardBatch(
            torch.tensor(token_ids, device=self._device),
            self._tensor(np.concatenate(positions)),
            torch.cat(slots),
            groups,
        )

    def _group(
        self, first: int, tables: np.ndarray[Any, Any], positions: np.ndarray[Any, Any]
    ) -> tuple[AttentionGroup, torch.Tensor]:
        """Return the attention group of sequences whose block tables and new positions, of
        shapes [sequences, blocks] and [sequences, queries], are given, and their slots."""
        size = self._cache.shape.block_size
        blocks = np.take_along_axis(tables, positions // size, axis=1)
        slots = self._cache.token_slots(
            self._tensor(blocks.reshape(-1)), self._tensor((positions % size).reshape(-1))
        )
        group = make_group(self._cache, first, self._tensor(tables), self._tensor(positions))
        return group, slots

    def _tensor(self, array: np.ndarray[Any, Any]) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)

    def _collect_prompt_logprobs(self, item: ScheduledSequence, hidden: torch.Tensor) -> None:
        sequence, start, count = item.sequence, item.start, item.count
        wanted = sequence.params.prompt_logprobs
        if wanted is None or sequence.num_outputs:
            return
        if start == 0:
            self._prompt_logprobs[sequence.request_id] = []
        parts = self._prompt_logprobs[sequence.request_id]
        end = min(start + count, sequence.prompt_length - 1)
        for low in range(start, end, PROMPT_LOGPROB_ROWS):
            high = min(low + PROMPT_LOGPROB_ROWS, end)
            logits = self._model.logits(hidden[low - start : high - start])
            logprobs = torch.log_softmax(logits.float(), dim=-1)
            targets = torch.tensor(sequence.tokens[low + 1 : high + 1], device=self._device)
            parts.append(prompt_logprobs(logprobs, targets, wanted))


def _group_key(item: ScheduledSequence, cache: KVCache) -> tuple[int, bool, int]:
    """What sequences must share to be attended to together: the number of new tokens, whether
    they begin, and about the same length, so that less than half of what is read is padding."""
    blocks = -(-(item.start + item.count) // cache.shape.block_size)
    return item.count, item.start == 0, (blocks - 1).bit_length()


def _block_tables(sequences: list[Sequence]) -> np.ndarray[Any, Any]:
    """Return block tables padded with the null block, shape [sequences, longest table]."""
    longest = max(len(sequence.block_ids) for sequence in sequences)
    tables = np.full((len(sequences), longest), NULL_BLOCK)
    for row, sequence in enumerate(sequences):
        tables[row, : len(sequence.block_ids)] = sequence.block_ids
    return tables
