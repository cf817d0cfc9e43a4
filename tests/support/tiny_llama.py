"""A Llama checkpoint of a few kilobytes with random weights, for tests that need real steps."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

VOCAB_SIZE = 256
_HIDDEN = 64
_INNER = 128
_LAYERS = 2
_HEADS = 4
_KV_HEADS = 2
_HEAD_DIM = _HIDDEN // _HEADS


def write_tiny_llama(
    directory: Path,
    max_positions: int = 2048,
    seed: int = 0,
    *,
    bias: bool = False,
    tied: bool = False,
    rope: dict[str, float | str] | None = None,
) -> Path:
    """Write config.json and model.safetensors into `directory`; return it.

    Args:
        directory: where to.
        max_positions: longest sequence, in tokens.
        seed: of the weights.
        bias: give the attention's products a bias.
        tied: use the embeddings as output matrix.
        rope: what config.json says of rotary scaling.
    """
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(
        json.dumps(
            {
                "architectures": ["LlamaForCausalLM"],
                "model_type": "llama",
                "vocab_size": VOCAB_SIZE,
                "hidden_size": _HIDDEN,
                "intermediate_size": _INNER,
                "num_hidden_layers": _LAYERS,
                "num_attention_heads": _HEADS,
                "num_key_value_heads": _KV_HEADS,
                "max_position_embeddings": max_positions,
                "rms_norm_eps": 1e-5,
                "rope_theta": 10000.0,
                "hidden_act": "silu",
                "tie_word_embeddings": tied,
                "attention_bias": bias,
                "rope_scaling": rope,
                "torch_dtype": "float32",
            }
        )
    )
    random = np.random.default_rng(seed)

    def weights(*shape: int) -> np.ndarray:
        return (random.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    tensors = {
        "model.embed_tokens.weight": weights(VOCAB_SIZE, _HIDDEN),
        "model.norm.weight": np.ones(_HIDDEN, np.float32),
    }
    if not tied:
        tensors["lm_head.weight"] = weights(VOCAB_SIZE, _HIDDEN)
    for layer in range(_LAYERS):
        shapes = {
            "self_attn.q_proj": (_HEADS * _HEAD_DIM, _HIDDEN),
            "self_attn.k_proj": (_KV_HEADS * _HEAD_DIM, _HIDDEN),
            "self_attn.v_proj": (_KV_HEADS * _HEAD_DIM, _HIDDEN),
            "self_attn.o_proj": (_HIDDEN, _HEADS * _HEAD_DIM),
            "mlp.gate_proj": (_INNER, _HIDDEN),
            "mlp.up_proj": (_INNER, _HIDDEN),
            "mlp.down_proj": (_HIDDEN, _INNER),
        }
        prefix = f"model.layers.{layer}."
        for name, shape in shapes.items():
            tensors[f"{prefix}{name}.weight"] = weights(*shape)
            if bias and name.startswith("self_attn"):
                tensors[f"{prefix}{name}.bias"] = weights(shape[0])
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}{name}.weight"] = np.ones(_HIDDEN, np.float32)
    save_file(tensors, directory / "model.safetensors")
    return directory
