"""A LoRA adapter of a few kilobytes with random weights, for a Llama-family model."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

RANK = 4


def write_lora_adapter(directory: Path, model: Path, seed: int = 0) -> Path:
    """Write an adapter that changes what every layer's queries are; return `directory`.

    Args:
        directory: where to; made if it is not there.
        model: directory whose config.json tells the sizes.
        seed: of the weights.
    """
    config = json.loads((model / "config.json").read_text())
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    random = np.random.default_rng(seed)
    tensors = {}
    for layer in range(layers):
        prefix = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        for name, shape in (("lora_A", (RANK, hidden)), ("lora_B", (hidden, RANK))):
            tensors[f"{prefix}.{name}.weight"] = random.standard_normal(shape).astype(np.float32)
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / "adapter_model.safetensors")
    (directory / "adapter_config.json").write_text(
        json.dumps(
            {
                "peft_type": "LORA",
                "r": RANK,
                "lora_alpha": RANK,
                "target_modules": ["q_proj"],
                "bias": "none",
                "base_model_name_or_path": str(model),
            }
        )
    )
    return directory
