"""Every shape of the Llama family that config.json can ask for, against transformers."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from enginecore_torch.architecture import UnsupportedModelError
from support.tiny_llama import VOCAB_SIZE, write_tiny_llama
from support.torch_runs import Reference, generate, make_core

pytestmark = pytest.mark.timeout(180)

LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param({}, id="plain"),
        pytest.param({"tied": True}, id="tied embeddings"),
        pytest.param({"bias": True}, id="attention bias"),
        pytest.param({"rope": LLAMA3}, id="llama3 rope"),
        pytest.param({"rope": {"rope_type": "linear", "factor": 4.0}}, id="linear rope"),
    ],
)
def test_greedy_tokens(tmp_path: Path, shape: dict[str, Any]) -> None:
    directory = write_tiny_llama(tmp_path, 512, **shape)
    random = Random(3)
    prompts = {str(n): [random.randrange(VOCAB_SIZE) for _ in range(n)] for n in (1, 20, 200)}
    generated = generate(make_core(directory), prompts, max_tokens=12)
    reference = Reference(directory)
    for name, tokens in generated.items():
        assert tokens == reference.greedy_along(prompts[name], tokens)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt2"}, "model_type: 'gpt2' is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act: 'gelu'"),
        ({"hidden_size": None}, "hidden_size: got None"),
        ({"num_key_value_heads": 3}, "num_key_value_heads: 3 does not divide"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "rope_type: 'yarn'"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"intermediate_size": 64}, r"gate_proj.weight: shape \[128, 64\], expected \[64, 64\]"),
        ({"num_hidden_layers": 1}, "model.layers.1.* does not know"),
        ({"num_hidden_layers": 3}, "model.layers.2.* no such tensor"),
    ],
)
def test_what_cannot_be_computed_is_named(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    directory = write_tiny_llama(tmp_path)
    config = directory / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **change}))
    with pytest.raises(UnsupportedModelError, match=message):
        make_core(directory)
