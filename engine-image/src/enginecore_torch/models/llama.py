"""The Llama family: RMSNorm, rotary positions, grouped-query attention, SwiGLU."""

from dataclasses import dataclass

import torch
from torch.nn import functional

from enginecore_torch.architecture import LlamaConfig, UnsupportedModelError
from enginecore_torch.attention import AttentionGroup, KVCache, attend
from enginecore_torch.linear import Linear
from enginecore_torch.loader import Checkpoint


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """The new tokens of a step, sequence after sequence.

    `token_ids` and `positions` have shape [tokens]; `slots` says where their keys and values
    go (`KVCache.token_slots`); `groups` cover all tokens in order.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    groups: list[AttentionGroup]


@dataclass(frozen=True, slots=True)
class _Layer:
    attention_norm: torch.Tensor
    qkv: Linear
    output: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear


class LlamaModel:
    """A decoder that keeps its keys and values in a KVCache."""

    def __init__(
        self, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device, max_positions: int
    ) -> None:
        """Take the weights out of `checkpoint`, which is empty afterwards.

        Args:
            checkpoint: shape and tensors.
            dtype: what to compute in.
            device: where to compute.
            max_positions: longest sequence, in tokens.

        Raises:
            UnsupportedModelError: a tensor is missing, has the wrong shape, or is surplus.
        """
        self.config = checkpoint.config
        weights = _Weights(checkpoint, dtype, device)
        self._embeddings = weights.take(
            "model.embed_tokens.weight", self.config.vocab_size, self.config.hidden_size
        )
        self._layers = [_layer(weights, self.config, i) for i in range(self.config.num_layers)]
        self._norm = weights.take("model.norm.weight", self.config.hidden_size)
        self._head = Linear(self._head_weight(weights))
        weights.check_used()
        self._cos, self._sin = _rotations(checkpoint, max_positions, dtype, device)

    def _head_weight(self, weights: "_Weights") -> torch.Tensor:
        name = "lm_head.weight"
        if self.config.tied_embeddings:
            weights.drop(name)
            return self._embeddings
        return weights.take(name, self.config.vocab_size, self.config.hidden_size)

    def forward(self, batch: ForwardBatch, cache: KVCache) -> torch.Tensor:
        """Compute a step; return the last layer's output, shape [tokens, hidden_size]."""
        config = self.config
        rotation = (
            self._cos[batch.positions].unsqueeze(1),
            self._sin[batch.positions].unsqueeze(1),
        )
        hidden = functional.embedding(batch.token_ids, self._embeddings)
        width, eps = (config.hidden_size,), config.rms_norm_eps
        for index, layer in enumerate(self._layers):
            normed = functional.rms_norm(hidden, width, layer.attention_norm, eps)
            attended = self._attention(index, layer, normed, rotation, batch, cache)
            hidden = hidden + layer.output(attended)
            normed = functional.rms_norm(hidden, width, layer.mlp_norm, eps)
            gate, up = layer.gate_up(normed).chunk(2, dim=-1)
            hidden = hidden + layer.down(functional.silu(gate).mul_(up))
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the scores of all tokens, shape [rows, vocab_size], for rows of `forward`."""
        width, eps = (self.config.hidden_size,), self.config.rms_norm_eps
        return self._head(functional.rms_norm(hidden, width, self._norm, eps))

    def _attention(
        self,
        index: int,
        layer: _Layer,
        hidden: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
        batch: ForwardBatch,
        cache: KVCache,
    ) -> torch.Tensor:
        config = self.config
        tokens = len(hidden)
        heads = layer.qkv(hidden).view(tokens, -1, config.head_dim)
        rotated = heads[:, : config.num_heads + config.num_kv_heads]
        cos, sin = rotation
        turned = torch.roll(rotated, config.head_dim // 2, -1)
        rotated.mul_(cos).addcmul_(turned, sin)
        cache.write(index, batch.slots, heads[:, config.num_heads :].reshape(-1, config.head_dim))
        out = attend(cache, index, batch.groups, heads[:, : config.num_heads])
        return out.reshape(tokens, -1)


class _Weights:
    """Hands out a checkpoint's tensors, each once, and knows which are left."""

    def __init__(self, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device) -> None:
        self._tensors = checkpoint.tensors
        self._dtype = dtype
        self._device = device

    def take(self, name: str, *shape: int) -> torch.Tensor:
        tensor = self.find(name, *shape)
        if tensor is None:
            raise UnsupportedModelError(f"{name}: the checkpoint has no such tensor")
        return tensor

    def find(self, name: str, *shape: int) -> torch.Tensor | None:
        tensor = self._tensors.pop(name, None)
        if tensor is None:
            return None
        if tuple(tensor.shape) != shape:
            raise UnsupportedModelError(
                f"{name}: shape {list(tensor.shape)}, expected {list(shape)}"
            )
        return tensor.to(self._device, self._dtype)

    def drop(self, name: str) -> None:
        self._tensors.pop(name, None)

    def fused(self, prefix: str, parts: dict[str, int], inputs: int) -> Linear:
        """Return one product for several that share their input."""
        weights = [self.take(f"{prefix}.{name}.weight", n, inputs) for name, n in parts.items()]
        biases = [self.find(f"{prefix}.{name}.bias", n) for name, n in parts.items()]
        present = [bias for bias in biases if bias is not None]
        if present and len(present) != len(biases):
            raise UnsupportedModelError(f"{prefix}: only some of {', '.join(parts)} have a bias")
        return Linear(torch.cat(weights), torch.cat(present) if present else None)

    def check_used(self) -> None:
        left = [name for name in self._tensors if not name.endswith("rotary_emb.inv_freq")]
        if left:
            raise UnsupportedModelError(
                f"{left[0]}: a tensor that this engine does not know, of {len(left)}"
            )


def _layer(weights: _Weights, config: LlamaConfig, index: int) -> _Layer:
    prefix = f"model.layers.{index}"
    hidden, inner = config.hidden_size, config.intermediate_size
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
    return _Layer(
        attention_norm=weights.take(f"{prefix}.input_layernorm.weight", hidden),
        qkv=weights.fused(attention, {"q_proj": query, "k_proj": key, "v_proj": key}, hidden),
        output=weights.fused(attention, {"o_proj": hidden}, query),
        mlp_norm=weights.take(f"{prefix}.post_attention_layernorm.weight", hidden),
        gate_up=weights.fused(mlp, {"gate_proj": inner, "up_proj": inner}, hidden),
        down=weights.fused(mlp, {"down_proj": hidden}, inner),
    )


def _rotations(
    checkpoint: Checkpoint, positions: int, dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosines and signed sines of all positions, each [positions, head_dim].

    The sine of the first half carries a minus sign: rotation then is x * cos plus x with its
    halves swapped * sin.
    """
    frequencies = torch.tensor(checkpoint.config.frequencies(), dtype=torch.float32)
    if checkpoint.rope_divisors is not None:
        frequencies = frequencies / torch.tensor(checkpoint.rope_divisors)
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), frequencies)
    cos, sin = angles.cos(), angles.sin()
    return (
        torch.cat((cos, cos), dim=-1).to(device, dtype),
        torch.cat((-sin, sin), dim=-1).to(device, dtype),
    )
