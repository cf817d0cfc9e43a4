"""Arrays and multimodal items as vLLM 0.32's own encoder writes them, embeddings that an engine
took and vectors it gave (tests/golden)."""

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
from enginecore_wire.outputs import EngineCoreOutputs, FinishReason
from enginecore_wire.requests import EngineCoreRequest
from enginecore_wire.tensors import ITEM_BYTES, Tensor

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "vllm-0.32"
ENCODED = json.loads((GOLDEN / "encoded.json").read_text())
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


def _exchanges(file):
    document = json.loads((GOLDEN / file).read_text())
    return [
        (e["name"], e["channel"], [b64decode(frame) for frame in e["frames"]])
        for e in document["exchanges"]
    ]


def _outputs(file, name):
    decoder = MsgpackDecoder(EngineCoreOutputs)
    return [
        output
        for where, channel, (body, *aux) in _exchanges(file)
        if where == name and channel.startswith("output")
        for output in decoder.decode(body, aux).outputs
    ]


@pytest.mark.parametrize(
    ("name", "tokens"),
    [("embeddings alone", None), ("embeddings among tokens", [1, 100, 101])],
)
def test_engine_took_embeddings_and_gave_tokens(name, tokens):
    (sent,) = [
        frames
        for where, channel, frames in _exchanges("embeddings.json")
        if (where, channel) == (name, "input to engine")
    ]
    request = MsgpackDecoder(EngineCoreRequest).decode(sent[1], sent[2:])
    rows = torch.linspace(-0.05, 0.05, 3 * 576).to(torch.bfloat16).reshape(3, 576)
    assert torch.equal(request.prompt_embeds.torch(), rows)
    assert request.prompt_token_ids == tokens
    outputs = _outputs("embeddings.json", name)
    assert outputs[-1].finish_reason is FinishReason.LENGTH
    assert sum(len(output.new_token_ids) for output in outputs) == 4
    for output in outputs:
        if output.new_token_ids:
            ids = output.new_logprobs.token_ids.numpy()
            assert ids.shape == (len(output.new_token_ids), 3)
            assert ids[:, 0].tolist() == output.new_token_ids
            assert (output.new_logprobs.values.numpy() <= 0).all()


@pytest.mark.parametrize(("task", "shape"), [("embed", (576,)), ("token_embed", (12, 576))])
def test_engine_gave_vectors(task, shape):
    (output,) = _outputs("pooling.json", task)
    assert output.finish_reason is FinishReason.STOP
    assert (output.new_token_ids, output.pooling_output.shape) == ([], shape)
    vectors = output.pooling_output.torch().reshape(-1, 576).double()
    assert torch.allclose(vectors.norm(dim=1), torch.ones(len(vectors)).double(), atol=1e-3)
    assert np.array_equal(output.pooling_output.numpy(), output.pooling_output.torch().numpy())


@pytest.mark.parametrize("file", ["embeddings.json", "pooling.json"])
def test_recorded_message_loses_nothing(file):
    for _, channel, frames in _exchanges(file):
        if channel.startswith("output"):
            message = MsgpackDecoder(EngineCoreOutputs).decode(frames[0], frames[1:])
            assert [bytes(f) for f in MsgpackEncoder().encode(message)[1:]] == frames[1:]
