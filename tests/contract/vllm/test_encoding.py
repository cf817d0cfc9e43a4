"""What our encoder writes, vLLM 0.32's own decoder reads: arrays of every dtype, embeddings,
multimodal items, outputs with arrays."""

import json
import os
import subprocess
from base64 import b64encode
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from enginecore_wire.arrays import TORCH_NAMES
from enginecore_wire.codec import MsgpackEncoder
from enginecore_wire.multimodal import (
    FieldKind,
    MultiModalFeatureSpec,
    MultiModalItem,
    PlaceholderRange,
)
from enginecore_wire.outputs import EngineCoreOutput, EngineCoreOutputs, Logprobs, PromptLogprobs
from enginecore_wire.requests import (
    EngineCoreRequest,
    LoRARequest,
    OutputKind,
    PoolingParams,
    SamplingParams,
)
from enginecore_wire.tensors import ITEM_BYTES, Tensor
from support.vllm_environment import RUN_VARIABLES, build_environment

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

SCRIPT = Path(__file__).resolve().parents[2] / "support" / "vllm_decode.py"
PIXELS = torch.arange(300, dtype=torch.float32).to(torch.bfloat16).reshape(3, 10, 10)
GRID = torch.tensor([[1, 2], [3, 4]])
BITS = torch.arange(800).to(torch.uint8) & 1
TORCH = [
    *(BITS.view(getattr(torch, dtype)).reshape(1, -1) for dtype in ITEM_BYTES),
    torch.tensor(7), torch.zeros(0, 3), torch.ones(63), torch.ones(64), PIXELS.transpose(0, 2),
    PIXELS[:, ::3],
]  # fmt: skip
NUMPY = [
    *(BITS.numpy().view(dtype) for dtype in TORCH_NAMES),
    np.array(2.5), np.zeros((2, 0)), np.ones((5, 7))[::2, ::3], np.arange(500).reshape(20, 25).T,
]  # fmt: skip
FEATURE = MultiModalFeatureSpec(
    {
        "pixels": MultiModalItem.of(PIXELS, FieldKind.batched(keep_on_cpu=True)),
        "grid": MultiModalItem.of(GRID.numpy(), FieldKind.batched()),
        "parts": MultiModalItem.of([PIXELS[0], [GRID, 3, 2.5]],
                                   FieldKind.flat([slice(0, 2), slice(2, 3, 1)], dim=1)),
        "scale": MultiModalItem.of(0.5, FieldKind.shared(2)),
        "cached": MultiModalItem.of(None, FieldKind.shared(2, keep_on_cpu=True)),
    },
    "image", "digest", PlaceholderRange(0, 2, Tensor.of(torch.tensor([False, True]))), "digest",
)  # fmt: skip
SAMPLING = SamplingParams(max_tokens=4, eos_token_id=2, output_kind=OutputKind.DELTA)
LOGPROBS = Logprobs(Tensor.of(np.arange(40, dtype="<i4").reshape(2, 20)),
                    Tensor.of(np.zeros((2, 20), dtype="<f4")), Tensor.of(np.ones(2, "<i4")),
                    [0, 1, 2])  # fmt: skip
PROMPT = PromptLogprobs(Tensor.of(torch.arange(400).reshape(20, 20)),
                        Tensor.of(torch.zeros(20, 20)), Tensor.of(torch.ones(20)))  # fmt: skip
MESSAGES: dict[str, tuple[str, Any]] = {
    "torch": ("arrays", TORCH),
    "numpy": ("numpy arrays", NUMPY),
    "image": ("request", EngineCoreRequest("r", [1, 2, 3], [FEATURE], SAMPLING)),
    "embeddings": (
        "request",
        EngineCoreRequest(
            "r", [1, 2, 3], sampling_params=SAMPLING, prompt_is_token_ids=[True, False, True],
            prompt_embeds=Tensor.of(torch.ones(3, 576, dtype=torch.bfloat16)),
            lora_request=LoRARequest("a", 1, "/a", load_inplace=True),
        ),
    ),
    "pooling": (
        "request",
        EngineCoreRequest("r", [1], pooling_params=PoolingParams(True, 64, task="embed")),
    ),
    "outputs": (
        "outputs",
        EngineCoreOutputs(3, [EngineCoreOutput(
            "r", [5, 6], LOGPROBS, PROMPT, Tensor.of(torch.ones(100)),
            routed_experts=Tensor.of(np.zeros((2, 3, 2), "<i2")),
        )], timestamp=1.5),
    ),
}  # fmt: skip


def shown(array: Any) -> list[Any]:
    """Return what vllm_decode.py tells of an array."""
    tensor = Tensor.of(array)
    library = "torch" if tensor.dtype in ITEM_BYTES else "numpy"
    return [library, tensor.dtype, list(tensor.shape), sha256(tensor.data).hexdigest()]


@pytest.fixture(scope="module")
def decoded() -> dict[str, Any]:
    encoder = MsgpackEncoder()
    document = {
        name: [kind, [b64encode(frame).decode() for frame in encoder.encode(message)]]
        for name, (kind, message) in MESSAGES.items()
    }
    told = subprocess.run(
        [str(build_environment()), str(SCRIPT)], input=json.dumps(document), text=True, check=True,
        stdout=subprocess.PIPE, env=os.environ | RUN_VARIABLES,
    )  # fmt: skip
    result: dict[str, Any] = json.loads(told.stdout.splitlines()[-1])
    return result


@pytest.mark.parametrize(("name", "arrays"), [("torch", TORCH), ("numpy", NUMPY)])
def test_arrays(decoded: dict[str, Any], name: str, arrays: list[Any]) -> None:
    assert decoded[name] == [shown(array) for array in arrays]


def test_multimodal_item(decoded: dict[str, Any]) -> None:
    (feature,) = decoded["image"]["mm_features"]
    data = feature.pop("data")
    assert feature["mm_position"] == {
        "offset": 0, "length": 2, "is_embed": shown(torch.tensor([False, True]))
    }  # fmt: skip
    assert (feature["modality"], feature["identifier"], feature["mm_hash"]) == (
        "image", "digest", "digest"
    )  # fmt: skip
    assert data == {
        "pixels": {"data": shown(PIXELS), "field": "MultiModalBatchedField", "keep_on_cpu": True},
        "grid": {"data": shown(GRID), "field": "MultiModalBatchedField", "keep_on_cpu": False},
        "parts": {
            "data": [shown(PIXELS[0]), [shown(GRID), 3, 2.5]], "field": "MultiModalFlatField",
            "slices": [[0, 2, None], [2, 3, 1]], "dim": 1, "keep_on_cpu": False,
        },
        "scale": {"data": 0.5, "field": "MultiModalSharedField", "batch_size": 2,
                  "keep_on_cpu": False},
        "cached": {"data": None, "field": "MultiModalSharedField", "batch_size": 2,
                   "keep_on_cpu": True},
    }  # fmt: skip


def test_embeddings_and_adapter(decoded: dict[str, Any]) -> None:
    request = decoded["embeddings"]
    assert request["prompt_embeds"] == shown(torch.ones(3, 576, dtype=torch.bfloat16))
    assert request["prompt_is_token_ids"] == [True, False, True]
    assert request["lora_request"]["load_inplace"] is True
    assert request["sampling_params"]["_eos_token_id"] == 2


def test_pooling_parameters(decoded: dict[str, Any]) -> None:
    params = decoded["pooling"]["pooling_params"]
    ours = msgspec.to_builtins(msgspec.structs.asdict(MESSAGES["pooling"][1].pooling_params))
    assert params == ours


def test_outputs(decoded: dict[str, Any]) -> None:
    (output,) = decoded["outputs"]["outputs"]
    assert output["new_logprobs"] == [
        *(shown(part) for part in (LOGPROBS.token_ids, LOGPROBS.values, LOGPROBS.ranks)), [0, 1, 2]
    ]  # fmt: skip
    assert output["new_prompt_logprobs_tensors"][:3] == [
        shown(part) for part in (PROMPT.token_ids, PROMPT.values, PROMPT.ranks)
    ]
    assert output["pooling_output"] == shown(torch.ones(100))
    assert output["routed_experts"] == shown(np.zeros((2, 3, 2), "<i2"))
    assert decoded["outputs"]["timestamp"] == 1.5
