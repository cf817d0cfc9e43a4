"""numpy arrays and torch tensors as dtype, shape and bytes, and back, without copying.

Neither library is imported before the caller has made an array of it or asks for one.
"""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    NumpyArray: TypeAlias = NDArray[Any]
    TorchTensor: TypeAlias = torch.Tensor

TORCH_ITEM_BYTES: Final = {
    "bool": 1, "uint8": 1, "int8": 1, "uint16": 2, "int16": 2, "uint32": 4, "int32": 4,
    "uint64": 8, "int64": 8, "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8,
    "complex64": 8, "complex128": 16,
    "float8_e4m3fn": 1, "float8_e4m3fnuz": 1, "float8_e5m2": 1, "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1, "float4_e2m1fn_x2": 1,
}  # fmt: skip
"""Bytes per item of the dtypes of torch, by name."""

NUMPY_NAMES: Final = {
    "bool": "|b1", "uint8": "|u1", "int8": "|i1", "uint16": "<u2", "int16": "<i2",
    "uint32": "<u4", "int32": "<i4", "uint64": "<u8", "int64": "<i8", "float16": "<f2",
    "float32": "<f4", "float64": "<f8", "complex64": "<c8", "complex128": "<c16",
}  # fmt: skip
"""numpy's type strings by torch's names, for dtypes that both have."""

TORCH_NAMES: Final = {numpy: torch for torch, numpy in NUMPY_NAMES.items()}

Parts = tuple[str, tuple[int, ...], memoryview]


def parts_of(array: Any) -> Parts | None:
    """Return dtype, shape and bytes of a numpy array or a torch tensor; None for anything else.

    The bytes are the array's own memory: keep it unchanged while they are in use. What is
    not contiguous is copied first, once.

    Raises:
        ValueError: the array is not on the CPU, is sparse, or has a dtype that may not travel
            (objects, records and text are pickles; other byte orders must be converted).
    """
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and isinstance(array, numpy.ndarray):
        return _of_numpy(array)
    if torch is not None and isinstance(array, torch.Tensor):
        return _of_torch(array, torch)
    return None


def as_numpy(dtype: str, shape: tuple[int, ...], data: memoryview) -> "NumpyArray":
    """Return a numpy array over `data`, read-only if `data` is.

    Raises:
        TypeError: numpy has no such dtype.
    """
    numpy = import_module("numpy")
    name = NUMPY_NAMES.get(dtype, dtype)
    if name not in TORCH_NAMES:
        raise TypeError(f"numpy has no {dtype}; read it as a torch tensor, or as .data")
    array: NumpyArray = numpy.ndarray(shape, name, data)
    return array


def as_torch(dtype: str, shape: tuple[int, ...], data: memoryview) -> "TorchTensor":
    """Return a torch tensor over `data`; do not write into it if `data` is read-only.

    Data that is not aligned for its dtype is copied.

    Raises:
        TypeError: the torch that is installed has no such dtype.
    """
    torch = import_module("torch")
    kind = getattr(torch, TORCH_NAMES.get(dtype, dtype), None)
    if kind is None:
        raise TypeError(f"torch {torch.__version__} has no {dtype}; read .data instead")
    if not data.nbytes:
        empty: TorchTensor = torch.empty(shape, dtype=kind)
        return empty
    with _no_word_of_read_only() if data.readonly else nullcontext():
        flat: TorchTensor = torch.frombuffer(data, dtype=torch.uint8)
    if flat.data_ptr() % kind.itemsize:
        flat = flat.clone()
    return flat.view(kind).view(shape)


@contextmanager
def _no_word_of_read_only() -> Iterator[None]:
    """Hide torch's warning that it cannot keep anybody from writing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def _of_numpy(array: "NumpyArray") -> Parts:
    name = array.dtype.str
    if name not in TORCH_NAMES:
        raise ValueError(
            f"array dtype {array.dtype} may not travel: convert it to a number type in "
            "little-endian order"
        )
    dense = array if array.flags.c_contiguous else array.copy(order="C")
    if not array.size:
        return name, array.shape, memoryview(b"")
    return name, array.shape, dense.reshape(-1).view("|u1").data


def _of_torch(tensor: "TorchTensor", torch: Any) -> Parts:
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in TORCH_ITEM_BYTES:
        raise ValueError(f"tensor dtype {name} may not travel")
    if tensor.layout is not torch.strided or tensor.device.type != "cpu":
        raise ValueError(
            f"tensor on {tensor.device} with layout {tensor.layout} may not travel: "
            "make it dense and copy it to the CPU"
        )
    dense = tensor.detach().resolve_conj().resolve_neg().contiguous()
    shape, size = tuple(tensor.shape), dense.numel() * dense.element_size()
    if not size:
        return name, shape, memoryview(b"")
    import ctypes  # noqa: PLC0415 - heavy, and for torch tensors alone

    memory = (ctypes.c_ubyte * size).from_address(dense.data_ptr())
    memory.owner = dense  # type: ignore[attr-defined]
    return name, shape, memoryview(memory).cast("B")
