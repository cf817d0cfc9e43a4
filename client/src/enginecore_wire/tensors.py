"""Tensors and arrays as they travel: dtype, shape and a raw little-endian buffer.

An array is `[dtype, shape, data]`. `data` is a msgpack extension of type 3 when the buffer is
small, and otherwise the index of the frame that carries it (the body is frame 0). Nothing
here knows numpy or torch; nothing is ever pickled.
"""

from math import prod
from typing import Any

import msgspec

EXT_RAW_VIEW = 3
"""The only extension type that is read or written; 1 and 2 carry pickles and are refused."""

INLINE_BYTES = 256
"""Buffers smaller than this many bytes are sent inside the body."""

ITEM_BYTES = {
    "bool": 1, "uint8": 1, "int8": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "uint16": 2, "int16": 2, "float16": 2, "bfloat16": 2,
    "uint32": 4, "int32": 4, "float32": 4,
    "uint64": 8, "int64": 8, "float64": 8, "complex64": 8, "complex128": 16,
}  # fmt: skip
"""Bytes per item of the dtypes of torch, by name."""

_ARRAY_ITEM_BYTES = {
    "|b1": 1, "|u1": 1, "|i1": 1, "<u2": 2, "<i2": 2, "<f2": 2, "<u4": 4, "<i4": 4, "<f4": 4,
    "<u8": 8, "<i8": 8, "<f8": 8, "<c8": 8, "<c16": 16,
}  # fmt: skip
"""The same for the dtypes of numpy, by type string."""

_CAST = {"|b1": "?", "|u1": "B", "|i1": "b", "<u2": "H", "<i2": "h", "<f2": "e", "<u4": "I",
         "<i4": "i", "<f4": "f", "<u8": "Q", "<i8": "q", "<f8": "d",
         "bool": "?", "uint8": "B", "int8": "b", "uint16": "H", "int16": "h", "float16": "e",
         "uint32": "I", "int32": "i", "float32": "f", "uint64": "Q", "int64": "q",
         "float64": "d"}  # fmt: skip


class Tensor:
    """A dense array: dtype, shape, and `data`, its C-contiguous little-endian bytes.

    `dtype` is numpy's type string (`<f4`) for arrays and torch's name (`float32`) for
    tensors, as vLLM writes them.

    Raises:
        ValueError: the buffer's size does not fit dtype and shape, or the dtype is unknown.
    """

    __slots__ = ("data", "dtype", "shape")

    def __init__(self, dtype: str, shape: tuple[int, ...], data: bytes | memoryview) -> None:
        view = memoryview(data).cast("B")
        expected = prod(shape) * item_bytes(dtype)
        if view.nbytes != expected:
            raise ValueError(
                f"tensor data: {view.nbytes} bytes do not fill shape {list(shape)} of {dtype}, "
                f"which takes {expected}"
            )
        self.dtype = dtype
        self.shape = shape
        self.data = view

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
    size = ITEM_BYTES.get(dtype) or _ARRAY_ITEM_BYTES.get(dtype)
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
