"""Attention over a KV cache that lives in blocks.

The cache of a layer is rows of `block_size * head_dim` numbers: row
`(part * kv_heads + head) * num_blocks + block` holds keys (part 0) or values (part 1) of one
head for the tokens of one block. So a gather of whole rows yields, for each head, the
contiguous [tokens, head_dim] matrices that matrix products want.
"""

from dataclasses import dataclass

import torch
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class CacheShape:
    """Sizes of the cache; `num_blocks` counts the null block."""

    num_layers: int
    num_blocks: int
    block_size: int
    num_kv_heads: int
    head_dim: int

    def block_bytes(self, item_bytes: int) -> int:
        """Return the bytes one block takes over all layers."""
        per_token = 2 * self.num_kv_heads * self.head_dim * item_bytes
        return self.num_layers * self.block_size * per_token


class KVCache:
    """Keys and values of all layers, in one tensor allocated once."""

    def __init__(self, shape: CacheShape, dtype: torch.dtype, device: torch.device) -> None:
        self.shape = shape
        self.dtype = dtype
        rows = 2 * shape.num_kv_heads * shape.num_blocks
        width = shape.block_size * shape.head_dim
        # Zeros, not garbage: a masked position has weight 0, and 0 x nan would be nan.
        self._storage = torch.zeros(shape.num_layers, rows, width, dtype=dtype, device=device)
        self._layers = list(self._storage)
        self._tokens = [
            layer.view(rows * shape.block_size, shape.head_dim) for layer in self._layers
        ]

    def write(self, layer: int, slots: torch.Tensor, heads: torch.Tensor) -> None:
        """Store keys and values of new tokens.

        Args:
            layer: index of the layer.
            slots: from `token_slots`, shape [tokens * 2 * kv_heads].
            heads: keys and then values, shape [tokens * 2 * kv_heads, head_dim].
        """
        self._tokens[layer].index_copy_(0, slots, heads)

    def read(
        self, layer: int, rows: torch.Tensor, sequences: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values, each of shape [sequences, kv_heads, tokens, head_dim].

        Args:
            layer: index of the layer.
            rows: from `block_rows`, shape [2 * kv_heads * sequences * blocks].
            sequences: how many sequences the rows are of.
        """
        gathered = torch.index_select(self._layers[layer], 0, rows)
        parts = gathered.view(2, self.shape.num_kv_heads, sequences, -1, self.shape.head_dim)
        return parts[0].transpose(0, 1), parts[1].transpose(0, 1)

    def block_rows(self, tables: torch.Tensor) -> torch.Tensor:
        """Return the rows that block tables of shape [sequences, blocks] refer to."""
        parts = 2 * self.shape.num_kv_heads
        first = torch.arange(parts, device=tables.device) * self.shape.num_blocks
        return (first[:, None] + tables.reshape(1, -1)).reshape(-1)

    def token_slots(self, blocks: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """Return where tokens at `offsets` within `blocks` (both of shape [tokens]) go."""
        parts = 2 * self.shape.num_kv_heads
        first = torch.arange(parts, device=blocks.device) * self.shape.num_blocks
        rows = first[None, :] + blocks[:, None]
        return (rows * self.shape.block_size + offsets[:, None]).reshape(-1)


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Sequences of a batch with the same number of new tokens, attended to together.

    `first` and `sequences * queries` say which rows of the batch they are. `rows` are the
    cache rows of their block tables, padded to the longest. `mask` is added to the scores,
    shape [sequences, 1, queries or 1, tokens]: 0 where a query may look, -inf elsewhere.
    """

    first: int
    sequences: int
    queries: int
    rows: torch.Tensor
    mask: torch.Tensor


def attend(
    cache: KVCache, layer: int, groups: list[AttentionGroup], query: torch.Tensor
) -> torch.Tensor:
    """Return attention's output, of the same shape as `query`.

    Args:
        cache: holds keys and values of all tokens, the new ones among them.
        layer: index of the layer.
        groups: the whole batch.
        query: shape [tokens, heads, head_dim].
    """
    outputs = []
    for group in groups:
        rows = query[group.first : group.first + group.sequences * group.queries]
        keys, values = cache.read(layer, group.rows, group.sequences)
        attended = _decode if group.queries == 1 else _prefill
        outputs.append(attended(rows, keys, values, group))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _decode(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, group: AttentionGroup
) -> torch.Tensor:
    """Attend with one query per sequence: heads that share a key form the query axis."""
    _, heads, head_dim = query.shape
    kv_heads = keys.shape[1]
    grouped = query.reshape(group.sequences, kv_heads, heads // kv_heads, head_dim)
    out = functional.scaled_dot_product_attention(grouped, keys, values, attn_mask=group.mask)
    return out.reshape(-1, heads, head_dim)


def _prefill(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, group: AttentionGroup
) -> torch.Tensor:
    """Attend with several queries per sequence: keys are repeated for the heads they serve."""
    _, heads, head_dim = query.shape
    repeats = heads // keys.shape[1]
    batched = query.view(group.sequences, group.queries, heads, head_dim).transpose(1, 2)
    if repeats > 1:
        keys = keys.repeat_interleave(repeats, dim=1)
        values = values.repeat_interleave(repeats, dim=1)
    out = functional.scaled_dot_product_attention(batched, keys, values, attn_mask=group.mask)
    return out.transpose(1, 2).reshape(-1, heads, head_dim)
