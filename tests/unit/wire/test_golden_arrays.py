"""Arrays and multimodal items as vLLM 0.32's own encoder writes them
(tests/golden/encode_with_vllm.py)."""

import json
from base64 import b64decode
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from enginecore_wire.arrays import TORCH_NAMES
from enginecore_wire.codec import MsgpackDecoder, MsgpackEncoder
from enginecore_wire.multimodal import FieldKind
from enginecore_wire.outputs import EngineCoreOutputs
from enginecore_wire.requests import EngineCoreRequest
from enginecore_wire.tensors import ITEM_BYTES, Tensor

ENCODED = json.loads(
    (Path(__file__).resolve().parents[2] / "golden" / "vllm-0.32" / "encoded.json").read_text()
)
ONES_AND_ZEROS = bytes([0, 1] * 300)
SQUARE = np.arange(400, dtype=np.float32).reshape(20, 20)


def _message(kind, name, message_type):
    body, *aux = (b64decode(frame) for frame in ENCODED[kind][name])
    return MsgpackDecoder(message_type).decode(body, aux)


def _arrays(name):
    return _message("arrays", name, list[Tensor])


@pytest.mark.parametrize("dtype", [name for name in ENCODED["arrays"] if name in ITEM_BYTES])
def test_every_dtype_of_torch(dtype):
    (tensor,) = _arrays(dtype)
    assert tensor.dtype == dtype
    expected = torch.frombuffer(bytearray(ONES_AND_ZEROS), dtype=torch.uint8)
    assert torch.equal(tensor.torch().view(torch.uint8), expected)


@pytest.mark.parametrize("dtype", [name for name in ENCODED["arrays"] if name in TORCH_NAMES])
def test_every_dtype_of_numpy(dtype):
    (tensor,) = _arrays(dtype)
    assert tensor.numpy().dtype.str == tensor.dtype == dtype
    assert tensor.numpy().tobytes() == ONES_AND_ZEROS


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("0-d", [np.array(7), np.array(2.5)]),
        ("empty", [np.zeros((0, 3)), np.zeros((2, 0))]),
        ("inline", [np.ones(63), np.ones(31)]),
        ("own frame", [np.ones(64), np.ones(32)]),
        ("transposed", [SQUARE.T, SQUARE.T]),
        ("strided", [SQUARE[::3, 1::2]] * 2),
        ("expanded", [np.ones((9, 9))]),
        ("many", [np.full(300, n) for n in range(5)]),
    ],
)
def test_shapes_and_strides(name, expected):
    tensors = _arrays(name)
    for tensor, array in zip(tensors, expected, strict=True):
        assert tensor.shape == array.shape
        assert np.array_equal(tensor.numpy(), array)
        assert np.array_equal(tensor.torch().numpy(), array)


def test_every_array_of_vllm_is_covered():
    tested = {*ITEM_BYTES, *TORCH_NAMES, "0-d", "empty", "inline", "own frame", "transposed",
              "strided", "expanded", "many"}  # fmt: skip
    assert set(ENCODED["arrays"]) <= tested
    assert set(ITEM_BYTES) - {"complex128"} <= set(ENCODED["arrays"])


@pytest.mark.parametrize("name", ENCODED["arrays"])
def test_what_is_written_again_is_the_same_bytes_in_the_same_frames(name):
    again = MsgpackEncoder().encode(_arrays(name))
    assert [bytes(frame) for frame in again] == [b64decode(f) for f in ENCODED["arrays"][name]]


def test_item_with_data_of_every_form():
    (feature,) = _message("requests", "image with data", EngineCoreRequest).mm_features
    assert feature.mm_position.is_embed.torch().tolist() == [False, True]
    data = {key: item.data for key, item in feature.data.items()}
    pixels = torch.arange(300, dtype=torch.float32).to(torch.bfloat16).reshape(3, 10, 10)
    small = [[0, 1], [2, 3]]
    assert torch.equal(data["pixel_values"].torch(), pixels)
    assert torch.equal(data["patches"].torch(), pixels[:, ::2])
    assert data["grid"].tolist() == small
    first, (second, *numbers) = data["windows"]
    assert torch.equal(first.torch(), pixels[0])
    assert (second.tolist(), numbers) == (small, [3, 2.5])
    assert (data["scale"], data["cached"]) == (0.5, None)


def test_field_kinds_are_those_our_constructors_make():
    (feature,) = _message("requests", "image with data", EngineCoreRequest).mm_features
    nested = FieldKind.flat([])
    nested.options.slices = [[[0, 1, 2]]]
    assert {key: item.field for key, item in feature.data.items()} == {
        "pixel_values": FieldKind.batched(),
        "grid": FieldKind.batched(keep_on_cpu=True),
        "patches": FieldKind.flat([slice(0, 2), slice(2, 3)], dim=1),
        "windows": nested,
        "scale": FieldKind.shared(2),
        "cached": FieldKind.shared(2, keep_on_cpu=True),
    }


def test_pooled_vector_and_large_log_probabilities():
    pooled, large = _message("outputs", "large arrays", EngineCoreOutputs).outputs
    assert torch.equal(pooled.pooling_output.torch(), torch.linspace(-1, 1, 576))
    logprobs = large.new_logprobs
    assert np.array_equal(logprobs.token_ids.numpy(), np.arange(840).reshape(40, 21))
    assert np.array_equal(logprobs.values.numpy(), -np.arange(840.0).reshape(40, 21))
    assert np.array_equal(logprobs.ranks.numpy(), np.arange(1, 41))
    experts = np.arange(1920, dtype=np.int16).reshape(40, 24, 2)
    assert np.array_equal(large.routed_experts.numpy(), experts)


def test_embeddings():
    request = _message("requests", "everything else", EngineCoreRequest)
    expected = torch.arange(256, dtype=torch.float32).to(torch.bfloat16).reshape(4, 64)
    assert torch.equal(request.prompt_embeds.torch(), expected)


def test_prompts_log_probabilities():
    (output,) = _message("outputs", "full", EngineCoreOutputs).outputs
    many = torch.arange(300).reshape(60, 5)
    assert torch.equal(output.new_prompt_logprobs.token_ids.torch(), many)
    assert torch.equal(output.new_prompt_logprobs.values.torch(), many.float())
    assert torch.equal(output.new_prompt_logprobs.ranks.torch(), many[:, 0])
    assert output.new_prompt_logprobs.cumulative_tensor.tolist() == [0, 60]
    assert msgspec.structs.astuple(output.new_logprobs)[3] == [0, 2]
