"""Tensors on the wire: where the buffer travels, and what is refused."""

import struct

import msgspec
import pytest

from enginecore_wire.codec import MsgpackDecoder, MsgpackEncoder
from enginecore_wire.tensors import Tensor, item_bytes

Ext = msgspec.msgpack.Ext


def _floats(*values):
    return struct.pack(f"<{len(values)}f", *values)


TENSORS = [
    pytest.param(Tensor("<f4", (2, 2), _floats(1, 2, 3, 4)), [[1, 2], [3, 4]], 0, id="inline"),
    pytest.param(Tensor("float32", (1, 64), bytes(256)), [[0.0] * 64], 1, id="own-frame"),
    pytest.param(Tensor("uint8", (255,), bytes(255)), [0] * 255, 0, id="largest-inline"),
    pytest.param(Tensor("<i4", (), struct.pack("<i", -7)), [-7], 0, id="scalar"),
    pytest.param(Tensor("<f4", (3, 0), b""), [], 0, id="empty"),
    pytest.param(Tensor("|b1", (2,), b"\0\1"), [False, True], 0, id="bool"),
    pytest.param(Tensor("<i8", (1, 1, 2), struct.pack("<2q", 1, -1)), [[[1, -1]]], 0, id="3d"),
]


@pytest.mark.parametrize(("tensor", "items", "frames"), TENSORS)
def test_tensor_survives_the_wire(tensor, items, frames):
    body, *aux = MsgpackEncoder().encode(tensor)
    assert len(aux) == frames
    back = MsgpackDecoder(Tensor).decode(body, aux)
    assert back == tensor
    assert back.tolist() == items


def test_bfloat16_example_of_vllm():
    body, aux = MsgpackEncoder().encode(Tensor("bfloat16", (4, 64), bytes(512)))
    assert body == bytes.fromhex("93 a862666c6f61743136 920440 01")
    assert aux.nbytes == 512


def test_large_buffers_are_not_copied():
    owner = bytearray(1 << 20)
    _, frame = MsgpackEncoder().encode(Tensor("uint8", (1 << 20,), memoryview(owner)))
    owner[5] = 77
    assert frame[5] == 77


def test_frames_are_numbered_in_the_order_they_follow():
    first, second = Tensor("uint8", (300,), b"a" * 300), Tensor("uint8", (400,), b"b" * 400)
    body, *aux = MsgpackEncoder().encode([first, 1, second])
    assert [frame.nbytes for frame in aux] == [300, 400]
    assert MsgpackDecoder(tuple[Tensor, int, Tensor]).decode(body, aux) == (first, 1, second)


def test_encoder_forgets_the_frames_of_the_message_before():
    encoder = MsgpackEncoder()
    encoder.encode(Tensor("uint8", (300,), bytes(300)))
    assert len(encoder.encode([1])) == 1


@pytest.mark.parametrize(
    ("value", "aux", "what"),
    [
        ("text", [], r"expected \[dtype, shape, data\]"),
        (["<f4", [1]], [], r"expected \[dtype, shape, data\]"),
        ([4, [1], Ext(3, bytes(4))], [], "dtype: str"),
        (["<f4", 1, Ext(3, bytes(4))], [], "shape: array"),
        (["<f4", [-1], Ext(3, b"")], [], "non-negative"),
        (["<f4", [1.0], Ext(3, bytes(4))], [], "non-negative"),
        (["<f4", [True], Ext(3, bytes(4))], [], "non-negative"),
        (["<f4", [1], 0], [b"body"], "frame 0 is not among the 1"),
        (["<f4", [1], 1], [], "frame 1 is not among the 0"),
        (["<f4", [1], 3], [bytes(4), bytes(4)], "frame 3 is not among the 2"),
        (["<f4", [1], -1], [bytes(4)], "frame -1 is not among"),
        (["<f4", [1], True], [bytes(4)], "extension of type 3 or a frame index"),
        (["<f4", [1], {"sender_id": "0"}], [], "extension of type 3 or a frame index"),
        (["<f4", [2], Ext(3, bytes(4))], [], "4 bytes do not fill shape"),
        (["<f4", [2], 1], [bytes(9)], "9 bytes do not fill shape"),
        (["<f4", [2**62, 2**62], Ext(3, b"")], [], "do not fill shape"),
        (["|O", [1], Ext(3, bytes(8))], [], "may not travel"),
        (["|V8", [1], Ext(3, bytes(8))], [], "may not travel"),
        ([">f4", [1], Ext(3, bytes(4))], [], "may not travel"),
        (["<i3", [1], Ext(3, bytes(3))], [], "may not travel"),
        (["Tensor", [1], Ext(3, bytes(3))], [], "may not travel"),
        (["<f4", [1], Ext(1, bytes(4))], [], "extension type 1"),
        (["<f4", [1], Ext(2, bytes(4))], [], "extension type 2"),
    ],
)  # fmt: skip
def test_refused(value, aux, what):
    with pytest.raises(msgspec.ValidationError, match=what):
        MsgpackDecoder(Tensor).decode(msgspec.msgpack.encode(value), aux)


@pytest.mark.parametrize("code", [1, 2, 4, 127, -2])
def test_extension_anywhere_is_refused(code):
    body = msgspec.msgpack.encode({"deep": [Ext(code, b"\x80\x04N.")]})
    with pytest.raises(msgspec.ValidationError, match=f"extension type {code} is not accepted"):
        MsgpackDecoder(dict).decode(body)


@pytest.mark.parametrize("value", [object(), {1: lambda: None}, [2 + 3j, object]])
def test_what_could_only_be_pickled_is_not_sent(value):
    with pytest.raises(TypeError, match="cannot be sent"):
        MsgpackEncoder().encode(value)


def test_deep_nesting_is_one_message_lost():
    decoder = MsgpackDecoder(list)
    with pytest.raises(msgspec.DecodeError, match="nested too deeply"):
        decoder.decode(b"\x91" * 100_000 + b"\xc0")
    assert decoder.decode(b"\x91\x01") == [1]


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "complex64", "<c8"])
def test_dtype_without_python_numbers_keeps_its_bytes(dtype):
    tensor = Tensor(dtype, (1,), bytes(item_bytes(dtype)))
    with pytest.raises(TypeError, match="no Python number type"):
        tensor.tolist()


def test_tensor_equals_by_value_and_has_no_hash():
    assert Tensor("|u1", (2,), b"ab") != Tensor("|u1", (1, 2), b"ab")
    assert Tensor("|u1", (2,), b"ab") != b"ab"
    with pytest.raises(TypeError, match="unhashable"):
        hash(Tensor("|u1", (2,), b"ab"))
