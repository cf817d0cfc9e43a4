"""Tensors and arrays as they travel: dtype, shape and a raw little-endian buffer.

An array is `[dtype, shape, data]`. `data` is a msgpack extension of type 3 when the buffer is
small, and otherwise the index of the frame that carries it (the body is frame 0). Nothing is
ever pickled.
"""

from math import prod
from typing import TYPE_CHECKING, Any, Self

import msgspec

from enginecore_wire.arrays import (
    NUMPY_NAMES,
    TORCH_ITEM_BYTES,
    TORCH_NAMES,
    as_numpy,
    as_torch,
    parts_of,
)
from enginecore_wire.plain import EXT_RAW_VIEW

if TYPE_CHECKING:
    from enginecore_wire.arrays import NumpyArray, TorchTensor

INLINE_BYTES = 256
"""Buffers smaller than this many bytes are sent inside the body."""

MAX_DIMENSIONS = 32
"""Dimensions of a tensor; what vLLM sends has five at most."""

MAX_ITEMS = 2**58
"""Items an array could have by its sizes other than 0, at up to 16 bytes each."""

ITEM_BYTES = TORCH_ITEM_BYTES
"""Bytes per item of the dtypes of torch, by name."""

_ITEM_BYTES = TORCH_ITEM_BYTES | {
    numpy: TORCH_ITEM_BYTES[torch] for torch, numpy in NUMPY_NAMES.items()
}
"""The same for those of numpy, too."""

_CAST = {"|b1": "?", "|u1": "B", "|i1": "b", "<u2": "H", "<i2": "h", "<f2": "e", "<u4": "I",
         "<i4": "i", "<f4": "f", "<u8": "Q", "<i8": "q", "<f8": "d",
         "bool": "?", "uint8": "B", "int8": "b", "uint16": "H", "int16": "h", "float16": "e",
         "uint32": "I", "int32": "i", "float32": "f", "uint64": "Q", "int64": "q",
         "float64": "d"}  # fmt: skip


class Tensor:
    """A dense array: dtype, shape, and `data`, its C-contiguous little-endian bytes.

    `dtype` is numpy's type string (`<f4`) for arrays and torch's name (`float32`) for
    tensors, as vLLM writes them and expects them: torch's for `prompt_embeds`, multimodal
    data and what a pooler returns, numpy's for log-probabilities of sampled tokens.

    Raises:
        ValueError: the buffer's size does not fit dtype and shape, the dtype is unknown, or
            there are more than 32 dimensions.
    """

    __slots__ = ("data", "dtype", "shape")

    def __init__(self, dtype: str, shape: tuple[int, ...], data: bytes | memoryview) -> None:
        if len(shape) > MAX_DIMENSIONS:
            raise ValueError(f"tensor shape: {len(shape)} dimensions, allowed: {MAX_DIMENSIONS}")
        view = memoryview(data).cast("B")
        expected = prod(shape) * item_bytes(dtype)
        if not expected and prod(filter(None, shape)) > MAX_ITEMS:
            raise ValueError(f"tensor shape: {list(shape)} is larger than any array can be")
        if view.nbytes != expected:
            raise ValueError(
                f"tensor data: {view.nbytes} bytes do not fill shape {list(shape)} of {dtype}, "
                f"which takes {expected}"
            )
        self.dtype = dtype
        self.shape = shape
        self.data = view

    @classmethod
    def of(cls, array: "NumpyArray | TorchTensor | Tensor") -> Self:
        """Return `array` as a tensor that shares its memory; leave that unchanged until the
        message is sent. An array that is not contiguous is copied.

        Raises:
            TypeError: it is neither a numpy array nor a torch tensor.
            ValueError: its dtype, layout or device cannot travel.
        """
        if isinstance(array, Tensor):
            return cls(array.dtype, array.shape, array.data)
        parts = parts_of(array)
        if parts is None:
            raise TypeError(
                f"expected a numpy array or a torch tensor, got {type(array).__qualname__}"
            )
        return cls(*parts)

    def numpy(self) -> "NumpyArray":
        """Return a numpy array over the same memory; read-only where that came from a message.

        Raises:
            TypeError: numpy has no such dtype (bfloat16, float8).
        """
        return as_numpy(self.dtype, self.shape, self.data)

    def torch(self) -> "TorchTensor":
        """Return a torch tensor over the same memory, which is not to be written to where it
        came from a message. What lies unaligned in a message is copied.

        Raises:
            TypeError: the torch that is installed has no such dtype.
        """
        return as_torch(self.dtype, self.shape, self.data)

    def with_torch_dtype(self) -> Self:
        """Return the same tensor under torch's name of the dtype."""
        return type(self)(TORCH_NAMES.get(self.dtype, self.dtype), self.shape, self.data)

    def with_numpy_dtype(self) -> Self:
        """Return the same tensor under numpy's name of the dtype, where numpy has it."""
        return type(self)(NUMPY_NAMES.get(self.dtype, self.dtype), self.shape, self.data)

    def tolist(self) -> list[Any]:
        """Return the items as nested lists (a scalar's list holds the one item).

        Raises:
            TypeError: Python has no number type for the dtype (bfloat16, float8, complex).
        """
        code = _CAST.get(self.dtype)
        if code is None:
            raise TypeError(f"{self.dtype} has no Python number type; read .data instead")
        if 0 in self.shape:
            return []
        flat: list[Any] = self.data.cast(code).tolist()  # type: ignore[call-overload]
        return _nest(flat, self.shape)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tensor):
            return NotImplemented
        return (self.dtype, self.shape, self.data) == (other.dtype, other.shape, other.data)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Tensor({self.dtype!r}, {self.shape!r}, {self.data.nbytes} bytes)"


def item_bytes(dtype: str) -> int:
    """Return the bytes one item of `dtype` takes.

    Raises:
        ValueError: the dtype is not one that may travel (objects and records are pickles).
    """
    size = _ITEM_BYTES.get(dtype)
    if size is None:
        raise ValueError(f"tensor dtype {dtype!r} may not travel")
    return size


def pack(tensor: Tensor, aux: list[memoryview]) -> list[Any]:
    """Return the wire form of `tensor`; a large buffer is appended to `aux`, the frames
    that follow the body."""
    if tensor.data.nbytes < INLINE_BYTES:
        data: Any = msgspec.msgpack.Ext(EXT_RAW_VIEW, tensor.data)
    else:
        aux.append(tensor.data)
        data = len(aux)
    return [tensor.dtype, tensor.shape, data]


def unpack(value: Any, aux: list[memoryview]) -> Tensor:
    """Return the tensor of a decoded `[dtype, shape, data]`, its buffer taken from `aux`
    when `data` is a frame index.

    Raises:
        ValueError: the value is no tensor, or names a frame that is not there.
    """
    if not isinstance(value, list | tuple) or len(value) != 3:
        raise ValueError("tensor: expected [dtype, shape, data]")
    dtype, shape, data = value
    if not isinstance(dtype, str) or not isinstance(shape, list | tuple):
        raise ValueError("tensor: expected [dtype: str, shape: array, data]")
    if not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError("tensor shape: expected non-negative integers")
    if type(data) is int:
        if not 1 <= data <= len(aux):
            raise ValueError(f"tensor data: frame {data} is not among the {len(aux)} that came")
        data = aux[data - 1]
    elif isinstance(data, msgspec.msgpack.Ext):
        data = data.data
    else:
        raise ValueError("tensor data: expected an extension of type 3 or a frame index")
    return Tensor(dtype, tuple(shape), data)


def _nest(flat: list[Any], shape: tuple[int, ...]) -> list[Any]:
    for size in reversed(shape[1:]):
        flat = [flat[i : i + size] for i in range(0, len(flat), size)]
    return flat
