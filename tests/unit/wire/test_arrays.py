"""numpy arrays and torch tensors travel as tensors, and back, without copying."""

import subprocess
import sys

import msgspec
import numpy as np
import pytest
import torch

from enginecore_wire.codec import MsgpackDecoder, MsgpackEncoder
from enginecore_wire.outputs import EngineCoreOutput, EngineCoreOutputs, Logprobs
from enginecore_wire.requests import EngineCoreRequest
from enginecore_wire.tensors import INLINE_BYTES, ITEM_BYTES, Tensor

NUMPY = ["?", "u1", "i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f2", "<f4", "<f8", "<c8",
         "<c16"]  # fmt: skip
SHAPES = [(), (0,), (3, 0, 2), (1,), (7,), (2, 3), (300,), (4, 5, 64)]


def _frames(value):
    body, *aux = MsgpackEncoder().encode([value])
    return bytes(body), [bytes(frame) for frame in aux]


def _back(body, aux):
    return MsgpackDecoder(list[Tensor]).decode(body, aux)[0]


def _bytes(count):
    return torch.arange(count).to(torch.uint8)


@pytest.mark.parametrize("dtype", NUMPY)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_numpy_array_survives_the_wire(dtype, shape):
    array = (np.arange(np.prod(shape, dtype=int)) % 5).astype(dtype).reshape(shape)
    body, aux = _frames(array)
    assert len(aux) == (array.nbytes >= INLINE_BYTES)
    back = _back(body, aux)
    assert back.dtype == np.dtype(dtype).str
    assert back.numpy().dtype == array.dtype
    assert back.numpy().shape == shape
    assert np.array_equal(back.numpy(), array)


@pytest.mark.parametrize("dtype", ITEM_BYTES)
@pytest.mark.parametrize("count", [0, 1, 16, 1000])
def test_torch_tensor_survives_the_wire(dtype, count):
    kind = getattr(torch, dtype)
    raw = _bytes(count * kind.itemsize) & 1  # ones and zeros, which are valid in bool as well
    tensor = raw.view(kind).reshape(1, count, 1)
    body, aux = _frames(tensor)
    back = _back(body, aux)
    assert (back.dtype, back.shape, len(aux)) == (dtype, (1, count, 1), raw.numel() >= INLINE_BYTES)
    again = back.torch()
    assert (again.dtype, again.shape) == (kind, tensor.shape)
    assert torch.equal(again.reshape(-1).view(torch.uint8), raw)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_torch_tensor_of_any_shape(shape):
    tensor = torch.arange(int(np.prod(shape)), dtype=torch.float32).reshape(shape)
    assert torch.equal(_back(*_frames(tensor)).torch(), tensor)


def test_item_sizes_are_torchs_own():
    assert {name: getattr(torch, name).itemsize for name in ITEM_BYTES} == ITEM_BYTES


@pytest.mark.parametrize(
    ("array", "dense"),
    [
        (np.arange(6, dtype="<i4").reshape(2, 3).T, [[0, 3], [1, 4], [2, 5]]),
        (np.arange(10, dtype="<i4")[::-3], [9, 6, 3, 0]),
        (torch.arange(6).reshape(2, 3).T, [[0, 3], [1, 4], [2, 5]]),
        (torch.arange(10)[2::4], [2, 6]),
        (torch.ones(2, 1).expand(2, 2), [[1.0, 1.0], [1.0, 1.0]]),
        (torch.tensor([1.0], requires_grad=True) * 2, [2.0]),
        (torch.arange(9)[4:6], [4, 5]),
    ],
)
def test_what_is_not_contiguous_travels_dense(array, dense):
    assert _back(*_frames(array)).tolist() == dense


def test_lazy_conjugate_is_resolved():
    tensor = torch.tensor([1 + 2j]).conj()
    assert _back(*_frames(tensor)).numpy().tolist() == [1 - 2j]


@pytest.mark.parametrize(
    ("array", "what"),
    [
        (np.array([object()]), "array dtype object may not travel"),
        (np.zeros(2, dtype="V8"), "may not travel"),
        (np.zeros(2, dtype=[("a", "<i4")]), "may not travel"),
        (np.array(["text"]), "may not travel"),
        (np.zeros(2, dtype=">f4"), "little-endian"),
        (np.zeros(2, dtype="<M8[s]"), "may not travel"),
        (torch.zeros(2, 2).to_sparse(), "make it dense"),
        (torch.zeros(2, device="meta"), "copy it to the CPU"),
    ],
)
def test_array_that_cannot_travel(array, what):
    with pytest.raises(ValueError, match=what):
        MsgpackEncoder().encode([array])
    with pytest.raises(ValueError, match=what):
        Tensor.of(array)


@pytest.mark.parametrize("value", [[1, 2], "text", None, memoryview(b"a")])
def test_tensor_is_made_of_arrays_only(value):
    with pytest.raises(TypeError, match="expected a numpy array or a torch tensor"):
        Tensor.of(value)


def test_tensor_of_a_tensor_shares_it():
    tensor = Tensor("|u1", (2,), bytearray(b"ab"))
    assert Tensor.of(tensor) == tensor
    assert Tensor.of(tensor).data.obj is tensor.data.obj


@pytest.mark.parametrize(
    "array", [np.zeros(1 << 16), torch.zeros(1 << 16), torch.zeros(1 << 17)[: 1 << 16]]
)
def test_large_array_is_sent_from_its_own_memory(array):
    _, frame = MsgpackEncoder().encode([array])
    array[5] = 1.0
    assert bytes(frame) == bytes(Tensor.of(array).data)


def test_frame_keeps_the_array_alive():
    _, frame = MsgpackEncoder().encode([torch.full((1000,), 7, dtype=torch.uint8)])
    _ = [torch.zeros(1000, dtype=torch.uint8) for _ in range(50)]
    assert bytes(frame) == b"\x07" * 1000


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_array_is_read_from_the_frames_own_memory(library):
    frame = bytearray(4096)
    body = MsgpackEncoder().encode([Tensor("float32", (1024,), bytes(4096))])[0]
    array = getattr(_back(body, [memoryview(frame)]), library)()
    frame[4:8] = b"\0\0\x80\x3f"
    assert float(array[1]) == 1.0


def test_small_array_is_read_from_the_bodys_own_memory():
    body = bytearray(_frames(np.arange(8, dtype="|u1"))[0])
    array = _back(memoryview(body), []).numpy()
    body[body.index(bytes(range(8)))] = 99
    assert array.tolist() == [99, 1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("offset", range(9))
def test_unaligned_data_reads_as_any_other(offset):
    room = bytearray(offset) + torch.arange(4, dtype=torch.float64).numpy().tobytes()
    tensor = Tensor("float64", (4,), memoryview(room)[offset:])
    assert tensor.torch().tolist() == tensor.numpy().tolist() == [0.0, 1.0, 2.0, 3.0]
    assert tensor.torch().data_ptr() % 8 == 0


def test_read_only_data_gives_arrays_without_a_warning():
    tensor = Tensor("float32", (512,), bytes(2048))
    assert not tensor.numpy().flags.writeable
    assert tensor.torch().sum() == 0


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float4_e2m1fn_x2"])
def test_dtype_numpy_lacks(name):
    tensor = Tensor(name, (1,), bytes(ITEM_BYTES[name]))
    with pytest.raises(TypeError, match=f"numpy has no {name}"):
        tensor.numpy()


def test_dtype_an_older_torch_lacks(monkeypatch):
    monkeypatch.delattr(torch, "float8_e8m0fnu")
    with pytest.raises(TypeError, match="has no float8_e8m0fnu"):
        Tensor("float8_e8m0fnu", (1,), b"a").torch()


@pytest.mark.parametrize(
    ("dtype", "for_torch", "for_numpy"),
    [("<f4", "float32", "<f4"), ("float16", "float16", "<f2"), ("bfloat16", "bfloat16", "bfloat16"),
     ("|b1", "bool", "|b1")],
)  # fmt: skip
def test_dtype_under_both_names(dtype, for_torch, for_numpy):
    tensor = Tensor(dtype, (0,), b"")
    assert tensor.with_torch_dtype() == Tensor(for_torch, (0,), b"")
    assert tensor.with_numpy_dtype() == Tensor(for_numpy, (0,), b"")


@pytest.mark.parametrize(
    ("shape", "size", "what"),
    [
        ([1] * 33, 4, "33 dimensions, allowed: 32"),
        ([2**62, 0], 0, "larger than any array"),
        ([2**40, 0, 2**40], 0, "larger than any array"),
        ([2**64 - 1] * 32, 0, "0 bytes do not fill"),
    ],
)
def test_shape_no_array_can_have(shape, size, what):
    body = msgspec.msgpack.encode(["<f4", shape, msgspec.msgpack.Ext(3, bytes(size))])
    with pytest.raises(msgspec.ValidationError, match=what):
        MsgpackDecoder(Tensor).decode(body)


def test_shape_of_a_million_sizes_is_refused_at_once():
    body = msgspec.msgpack.encode(["<f4", [2**63] * 10**6, msgspec.msgpack.Ext(3, b"")])
    with pytest.raises(msgspec.ValidationError, match="1000000 dimensions, allowed: 32"):
        MsgpackDecoder(Tensor).decode(body)


def test_prompt_embeddings_and_pooled_vectors_go_as_arrays():
    embeds = torch.ones(3, 64, dtype=torch.bfloat16)
    request = EngineCoreRequest("r", None, prompt_embeds=Tensor.of(embeds))
    body, *aux = MsgpackEncoder().encode(request)
    back = MsgpackDecoder(EngineCoreRequest).decode(body, aux).prompt_embeds
    assert torch.equal(back.torch(), embeds)
    logprobs = Logprobs(*map(Tensor.of, (np.ones((2, 3), "<i4"), np.zeros((2, 3), "<f4"),
                                         np.ones(2, "<i4"))), [0, 1, 2])  # fmt: skip
    output = EngineCoreOutput("r", [1], logprobs, pooling_output=Tensor.of(torch.ones(100)))
    body, *aux = MsgpackEncoder().encode(EngineCoreOutputs(outputs=[output]))
    (back,) = MsgpackDecoder(EngineCoreOutputs).decode(body, aux).outputs
    assert torch.equal(back.pooling_output.torch(), torch.ones(100))
    assert back.new_logprobs.token_ids.numpy().tolist() == [[1, 1, 1], [1, 1, 1]]
    assert back.new_logprobs.cumulative == [0, 1, 2]


def test_wire_imports_no_tensor_library():
    code = (
        "import sys, pkgutil, importlib, enginecore_wire as wire\n"
        "for found in pkgutil.iter_modules(wire.__path__):\n"
        "    importlib.import_module('enginecore_wire.' + found.name)\n"
        "print(sorted({'numpy', 'torch'} & set(sys.modules)))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"
