"""Multimodal features: fields of every kind, nested data, and what cannot be one."""

import msgspec
import numpy as np
import pytest
import torch

from enginecore_wire.codec import MsgpackDecoder, MsgpackEncoder
from enginecore_wire.multimodal import (
    FieldKind,
    MultiModalFeatureSpec,
    MultiModalItem,
    PlaceholderRange,
)
from enginecore_wire.requests import EngineCoreRequest
from enginecore_wire.tensors import Tensor

PIXELS = torch.arange(3 * 32 * 32, dtype=torch.float32).to(torch.bfloat16).reshape(3, 32, 32)
GRID = np.array([[1, 2, 2]], dtype="<i8")


def _feature(data, **changes):
    fields = {"modality": "image", "identifier": "d1", "mm_position": PlaceholderRange(4, 16),
              "mm_hash": "d1"}  # fmt: skip
    return MultiModalFeatureSpec(data, **(fields | changes))


def _frames(feature):
    request = EngineCoreRequest("r", [0] * 32, [feature])
    return MsgpackEncoder().encode(request)


def _tree(frames):
    return msgspec.msgpack.decode(frames[0], ext_hook=lambda code, data: (code, bytes(data)))[2][0]


@pytest.mark.parametrize(
    ("kind", "tree"),
    [
        (FieldKind.batched(), ["batched", {}]),
        (FieldKind.batched(keep_on_cpu=True), ["batched", {"keep_on_cpu": True}]),
        (FieldKind.flat([slice(0, 4), slice(4, 9)]),
         ["flat", {"slices": [[0, 4, None], [4, 9, None]]}]),
        (FieldKind.flat([slice(0, 4, 2)], dim=1, keep_on_cpu=True),
         ["flat", {"slices": [[0, 4, 2]], "dim": 1, "keep_on_cpu": True}]),
        (FieldKind.shared(3), ["shared", {"batch_size": 3}]),
        (FieldKind.shared(3, keep_on_cpu=True),
         ["shared", {"batch_size": 3, "keep_on_cpu": True}]),
    ],
)  # fmt: skip
def test_field_kind_travels_by_name_and_arguments(kind, tree):
    frames = _frames(_feature({"x": MultiModalItem.of(1, kind)}))
    assert _tree(frames)["data"] == {"x": {"data": 1, "field": tree}}
    back = MsgpackDecoder(EngineCoreRequest).decode(frames[0], frames[1:])
    assert back.mm_features[0].data["x"].field == kind


@pytest.mark.parametrize(
    ("data", "frames"),
    [
        (PIXELS, 1),
        (GRID, 0),
        (7, 0),
        (0.5, 0),
        ([], 0),
        ([PIXELS, PIXELS[:1], 3], 2),
        ([[PIXELS], [GRID, [GRID, 1.5]]], 1),
        (None, 0),
    ],
)
def test_data_of_every_form_survives_the_wire(data, frames):
    feature = _feature({"x": MultiModalItem.of(data, FieldKind.batched())})
    body, *aux = _frames(feature)
    assert len(aux) == frames
    assert MsgpackDecoder(EngineCoreRequest).decode(body, aux).mm_features == [feature]


def test_arrays_get_torchs_dtype_names_which_engines_look_up():
    item = MultiModalItem.of([GRID, PIXELS], FieldKind.batched())
    assert [tensor.dtype for tensor in item.data] == ["int64", "bfloat16"]


def test_pixels_are_sent_from_their_own_memory_and_read_back():
    body, frame = _frames(_feature({"x": MultiModalItem.of(PIXELS, FieldKind.batched())}))
    assert Tensor.of(PIXELS).data.nbytes == frame.nbytes
    (feature,) = MsgpackDecoder(EngineCoreRequest).decode(body, [frame]).mm_features
    assert feature.data["x"].data.torch().data_ptr() == PIXELS.data_ptr()
    assert torch.equal(feature.data["x"].data.torch(), PIXELS)


def test_places_of_embeddings():
    mask = Tensor.of(torch.tensor([True, False]))
    feature = _feature(None, mm_position=PlaceholderRange(1, 2, mask))
    frames = _frames(feature)
    assert _tree(frames) == {
        "data": None, "modality": "image", "identifier": "d1", "mm_hash": "d1",
        "mm_position": {"offset": 1, "length": 2, "is_embed": ["bool", [2], (3, b"\1\0")]},
    }  # fmt: skip
    (back,) = MsgpackDecoder(EngineCoreRequest).decode(*frames).mm_features
    assert back.mm_position.is_embed.torch().tolist() == [True, False]


@pytest.mark.parametrize("value", ["text", {"a": 1}, [1, "text"], True, [[None]], b"raw"])
def test_data_of_another_form_is_refused_with_its_place(value):
    item = {"data": {"x": {"data": value, "field": ["batched", {}]}}, "modality": "image",
            "identifier": "i", "mm_position": {"offset": 0, "length": 1}}  # fmt: skip
    body = msgspec.msgpack.encode(["r", [1], [item]])
    with pytest.raises(msgspec.ValidationError, match=r"\$\[2\]\[0\].data\[...\].data"):
        MsgpackDecoder(EngineCoreRequest).decode(body)


def test_tensor_of_another_process_is_refused():
    """What vLLM passes through a queue between its own processes never leaves them."""
    handle = ["float32", [4], {"sender_id": "0a0b0c0d", "message_id": 1, "tensor_id": 0}]
    item = {"data": {"x": {"data": handle, "field": ["batched", {}]}}, "modality": "image",
            "identifier": "i", "mm_position": {"offset": 0, "length": 1}}  # fmt: skip
    with pytest.raises(msgspec.ValidationError, match="extension of type 3 or a frame index"):
        MsgpackDecoder(EngineCoreRequest).decode(msgspec.msgpack.encode(["r", [1], [item]]))


def test_data_must_be_arrays():
    with pytest.raises(TypeError, match="expected a numpy array or a torch tensor, got str"):
        MultiModalItem.of(["text"], FieldKind.batched())


def test_unknown_arguments_of_newer_engines_are_ignored():
    tree = ["batched", {"keep_on_cpu": True, "new": 1}]
    kind = msgspec.convert(tree, FieldKind)
    assert kind == FieldKind.batched(keep_on_cpu=True)
