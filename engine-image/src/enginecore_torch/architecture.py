"""The shape of a Llama-family model, from a Hugging Face config.json or GGUF metadata."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SUPPORTED_TYPES = ("llama",)


class UnsupportedModelError(ValueError):
    """The checkpoint holds something this engine cannot compute; the text names it."""


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Llama 3's stretching of rotary frequencies, or a linear one when `low` equals `high`.

    Wavelengths (positions per turn) above `original_positions / low` are stretched by
    `factor`, those below `original_positions / high` are kept, those between are blended.
    """

    factor: float
    low: float = 0.0
    high: float = 0.0
    original_positions: int = 0

    def apply(self, frequencies: list[float]) -> list[float]:
        """Return the scaled `frequencies` (radians per position)."""
        if self.low == self.high:
            return [frequency / self.factor for frequency in frequencies]
        return [self._blend(frequency) for frequency in frequencies]

    def _blend(self, frequency: float) -> float:
        turns = self.original_positions * frequency / (2.0 * math.pi)
        share = min(max((turns - self.low) / (self.high - self.low), 0.0), 1.0)
        return share * frequency + (1.0 - share) * frequency / self.factor


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """Sizes of a decoder with rotary positions, grouped-query attention and SwiGLU."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    max_positions: int
    tied_embeddings: bool
    rope_scaling: RopeScaling | None = None
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise UnsupportedModelError(
                f"num_key_value_heads: {self.num_kv_heads} does not divide "
                f"num_attention_heads ({self.num_heads})"
            )
        if self.head_dim % 2:
            raise UnsupportedModelError(f"head_dim: {self.head_dim} is odd")

    def frequencies(self) -> list[float]:
        """Return the rotary frequencies in radians per position, `head_dim / 2` of them."""
        plain = [
            self.rope_theta ** (-index / self.head_dim) for index in range(0, self.head_dim, 2)
        ]
        return self.rope_scaling.apply(plain) if self.rope_scaling else plain


def from_hugging_face(config: Mapping[str, Any]) -> LlamaConfig:
    """Return the shape that a config.json describes.

    Raises:
        UnsupportedModelError: it is not a Llama-family model, or a field is missing or asks
            for what this engine does not compute.
    """
    kind = config.get("model_type")
    if kind not in SUPPORTED_TYPES:
        raise UnsupportedModelError(
            f"model_type: {kind!r} is not supported; this engine runs {', '.join(SUPPORTED_TYPES)}"
        )
    if config.get("hidden_act", "silu") != "silu":
        raise UnsupportedModelError(f"hidden_act: {config['hidden_act']!r}; only silu is supported")
    if config.get("quantization_config"):
        raise UnsupportedModelError(
            "quantization_config: quantised safetensors are not supported; use a GGUF file or "
            "an unquantised checkpoint"
        )
    rope = {**config, **(config.get("rope_parameters") or {})}
    heads = _integer(config, "num_attention_heads")
    hidden = _integer(config, "hidden_size")
    return LlamaConfig(
        vocab_size=_integer(config, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=_integer(config, "intermediate_size"),
        num_layers=_integer(config, "num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or hidden // heads),
        rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        rope_theta=float(rope.get("rope_theta", 10000.0)),
        rope_scaling=_rope_scaling(config),
        max_positions=int(config.get("max_position_embeddings", 2048)),
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        dtype=str(config.get("dtype") or config.get("torch_dtype") or "float32"),
    )


def from_gguf(metadata: Mapping[str, Any], vocab_size: int, tied_embeddings: bool) -> LlamaConfig:
    """Return the shape that a GGUF file's metadata describes.

    Args:
        metadata: key to value, as stored in the file.
        vocab_size: rows of its embedding table.
        tied_embeddings: whether the file has no output matrix of its own.

    Raises:
        UnsupportedModelError: it is not a Llama-family model, or a key is missing.
    """
    kind = metadata.get("general.architecture")
    if kind not in SUPPORTED_TYPES:
        raise UnsupportedModelError(
            f"general.architecture: {kind!r} is not supported; "
            f"this engine runs {', '.join(SUPPORTED_TYPES)}"
        )
    scaling = metadata.get("llama.rope.scaling.type", "none")
    factor = float(metadata.get("llama.rope.scaling.factor", 1.0))
    if scaling not in ("none", "linear"):
        raise UnsupportedModelError(f"llama.rope.scaling.type: {scaling!r} is not supported")
    if metadata.get("llama.expert_count"):
        raise UnsupportedModelError("llama.expert_count: mixtures of experts are not supported")
    heads = _integer(metadata, "llama.attention.head_count")
    hidden = _integer(metadata, "llama.embedding_length")
    return LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=_integer(metadata, "llama.feed_forward_length"),
        num_layers=_integer(metadata, "llama.block_count"),
        num_heads=heads,
        num_kv_heads=int(metadata.get("llama.attention.head_count_kv", heads)),
        head_dim=int(metadata.get("llama.attention.key_length", hidden // heads)),
        rms_norm_eps=float(metadata.get("llama.attention.layer_norm_rms_epsilon", 1e-5)),
        rope_theta=float(metadata.get("llama.rope.freq_base", 10000.0)),
        rope_scaling=RopeScaling(factor) if scaling == "linear" else None,
        max_positions=_integer(metadata, "llama.context_length"),
        tied_embeddings=tied_embeddings,
    )


def _integer(source: Mapping[str, Any], key: str) -> int:
    value = source.get(key)
    if not isinstance(value, int) or value < 1:
        raise UnsupportedModelError(f"{key}: got {value!r}, expected a positive integer")
    return value


def _rope_scaling(config: Mapping[str, Any]) -> RopeScaling | None:
    scaling = config.get("rope_parameters") or config.get("rope_scaling")
    if not scaling:
        return None
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return None
    if kind == "linear":
        return RopeScaling(float(scaling["factor"]))
    if kind == "llama3":
        return RopeScaling(
            factor=float(scaling["factor"]),
            low=float(scaling["low_freq_factor"]),
            high=float(scaling["high_freq_factor"]),
            original_positions=int(scaling["original_max_position_embeddings"]),
        )
    raise UnsupportedModelError(
        f"rope_parameters.rope_type: {kind!r} is not supported; use default, linear or llama3"
    )
