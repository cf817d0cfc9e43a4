"""Checkpoints from disk: a Hugging Face directory with safetensors, or one GGUF file.

Tensors get Hugging Face's names whatever the file calls them, and rotary weights
Hugging Face's order (halves, not pairs).
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors import safe_open

from enginecore_torch.architecture import (
    LlamaConfig,
    UnsupportedModelError,
    from_gguf,
    from_hugging_face,
)

_GGUF_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_GGUF_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model's shape and its tensors by Hugging Face name.

    `rope_divisors`, if set, divide the rotary frequencies (shape [head_dim / 2]).
    """

    config: LlamaConfig
    tensors: dict[str, torch.Tensor]
    rope_divisors: list[float] | None = None


def load_checkpoint(path: Path, dtype: torch.dtype | None) -> Checkpoint:
    """Read the model at `path`.

    Args:
        path: a directory with config.json and safetensors, or with one .gguf file, or such a file.
        dtype: what to convert floating-point tensors to; None takes the file's own.

    Raises:
        FileNotFoundError: there is no such model; the text says what was looked for.
        PermissionError: this user may not read it.
        UnsupportedModelError: the model is none this engine can compute.
    """
    if path.is_dir() and (path / "config.json").is_file():
        return _load_directory(path, dtype)
    if path.is_dir():
        path = _only_gguf(path)
    if path.suffix == ".gguf" and path.is_file():
        return _load_gguf(path, dtype or torch.float32)
    raise FileNotFoundError(
        f"model: {path} is neither a directory with config.json nor a .gguf file"
    )


def _load_directory(path: Path, dtype: torch.dtype | None) -> Checkpoint:
    config = from_hugging_face(json.loads((path / "config.json").read_text()))
    dtype = dtype or getattr(torch, config.dtype.removeprefix("torch."))
    tensors: dict[str, torch.Tensor] = {}
    for file in _shards(path):
        with safe_open(file, framework="pt") as shard:
            for name in shard.keys():  # noqa: SIM118 - not a mapping
                tensors[name] = shard.get_tensor(name).to(dtype)
    return Checkpoint(config, tensors)


def _only_gguf(directory: Path) -> Path:
    found = sorted(directory.glob("*.gguf"))
    if len(found) != 1:
        raise FileNotFoundError(
            f"model: {directory} has no config.json, and {len(found)} .gguf files instead of one"
        )
    return found[0]


def _shards(path: Path) -> list[Path]:
    index = path / "model.safetensors.index.json"
    if index.is_file():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        shards = [path / name for name in names]
    else:
        shards = [path / "model.safetensors"]
    for shard in shards:
        if not shard.is_file():
            raise FileNotFoundError(f"model: {shard} is missing; only safetensors are read")
        # The library would say that there is no such file.
        if not os.access(shard, os.R_OK):
            raise PermissionError(f"model: {shard} may not be read by user {os.getuid()}")
    return shards


def _load_gguf(path: Path, dtype: torch.dtype) -> Checkpoint:
    reader = GGUFReader(path)
    names = {tensor.name for tensor in reader.tensors}
    metadata = _scalars(reader)
    embeddings = next((t for t in reader.tensors if t.name == "token_embd.weight"), None)
    if embeddings is None:
        raise UnsupportedModelError(f"{path}: token_embd.weight is missing")
    config = from_gguf(metadata, int(embeddings.shape[1]), "output.weight" not in names)
    tensors: dict[str, torch.Tensor] = {}
    divisors: list[float] | None = None
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        if tensor.name == "rope_freqs.weight":
            divisors = values.tolist()
            continue
        name = _hugging_face_name(tensor.name)
        if name.endswith("self_attn.q_proj.weight"):
            values = _halves(values, config.num_heads)
        elif name.endswith("self_attn.k_proj.weight"):
            values = _halves(values, config.num_kv_heads)
        tensors[name] = torch.from_numpy(np.array(values)).to(dtype)
    return Checkpoint(config, tensors, divisors)


def _scalars(reader: Any) -> Mapping[str, Any]:
    fields = reader.fields.items()
    return {key: field.contents() for key, field in fields if not key.startswith("tokenizer.")}


def _hugging_face_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem in _GGUF_NAMES:
        return f"{_GGUF_NAMES[stem]}.{kind}"
    parts = stem.split(".")
    if len(parts) == 3 and parts[0] == "blk" and parts[2] in _GGUF_LAYER_NAMES:
        return f"model.layers.{parts[1]}.{_GGUF_LAYER_NAMES[parts[2]]}.{kind}"
    raise UnsupportedModelError(f"{name}: a tensor that this engine does not know")


def _halves(weight: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Return a rotary weight with each head's rows in halves instead of pairs.

    GGUF puts the two numbers that are rotated together next to each other; Hugging Face
    puts all first ones before all second ones.
    """
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)
