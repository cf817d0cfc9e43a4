"""Attention over scattered blocks gives what dense softmax attention gives."""

from random import Random

import pytest
import torch

from enginecore_torch.attention import CacheShape, KVCache, attend, make_group

SHAPE = CacheShape(num_layers=2, num_blocks=48, block_size=4, num_kv_heads=2, head_dim=8)
HEADS = 6
LAYER = 1

Chunk = tuple[int, int]
"""First position and number of new tokens of one sequence."""


def filled_cache(random: torch.Generator) -> KVCache:
    """Return a cache whose every place holds something that must not be seen."""
    cache = KVCache(SHAPE, torch.float32, torch.device("cpu"))
    places = torch.arange(SHAPE.num_blocks * SHAPE.block_size)
    slots = cache.token_slots(places // SHAPE.block_size, places % SHAPE.block_size)
    for layer in range(SHAPE.num_layers):
        cache.write(layer, slots, 50 * torch.randn(len(slots), SHAPE.head_dim, generator=random))
    return cache


def dense(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Attend with the last queries of one sequence, each of shape [tokens, heads, head_dim]."""
    total, count = len(keys), len(query)
    repeats = HEADS // SHAPE.num_kv_heads
    keys, values = (each.repeat_interleave(repeats, dim=1) for each in (keys, values))
    scores = torch.einsum("qhd,khd->hqk", query, keys) / SHAPE.head_dim**0.5
    visible = torch.arange(total) <= torch.arange(total - count, total)[:, None]
    weights = torch.softmax(scores.masked_fill(~visible, -torch.inf), dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, values)


@pytest.mark.parametrize(
    "batch",
    [
        [[(0, 1)]],
        [[(0, 1), (3, 1), (4, 1), (30, 1)]],
        [[(0, 7), (0, 7), (0, 7)]],
        [[(0, 8)]],
        [[(3, 5), (9, 5), (20, 5)]],
        [[(8, 4), (0, 4)]],
        [[(17, 1), (2, 1)], [(0, 9), (0, 9)], [(5, 3)]],
    ],
    ids=["first token", "decode, mixed lengths", "prompts", "prompt of whole blocks",
         "later chunks, mixed lengths", "chunk beside a beginning", "decode and prefill"],
)  # fmt: skip
@pytest.mark.parametrize("seed", range(3))
def test_paged_attention_is_dense_attention(batch: list[list[Chunk]], seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    cache = filled_cache(random)
    free = list(range(1, SHAPE.num_blocks))
    Random(seed).shuffle(free)
    groups, queries, expected = [], [], []
    for chunks in batch:
        longest = -(-max(start + count for start, count in chunks) // SHAPE.block_size)
        tables = torch.zeros(len(chunks), longest, dtype=torch.int64)
        for table, (start, count) in zip(tables, chunks, strict=True):
            total = start + count
            for place in range(-(-total // SHAPE.block_size)):
                table[place] = free.pop()
            places = torch.arange(total)
            heads = torch.randn(total, 2, SHAPE.num_kv_heads, SHAPE.head_dim, generator=random)
            slots = cache.token_slots(table[places // SHAPE.block_size], places % SHAPE.block_size)
            cache.write(LAYER, slots, heads.view(-1, SHAPE.head_dim))
            query = torch.randn(count, HEADS, SHAPE.head_dim, generator=random)
            expected.append(dense(query, heads[:, 0], heads[:, 1]))
            queries.append(query)
        positions = torch.tensor([range(start, start + count) for start, count in chunks])
        first = sum(group.sequences * group.queries for group in groups)
        groups.append(make_group(cache, first, tables, positions))
    found = attend(cache, LAYER, groups, torch.cat(queries))
    torch.testing.assert_close(found, torch.cat(expected), rtol=1e-5, atol=1e-5)
