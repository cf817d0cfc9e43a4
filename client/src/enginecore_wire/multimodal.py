"""Images, audio and video in a request: what their processor made of them.

item = MultiModalItem.of(pixel_values, FieldKind.batched())
feature = MultiModalFeatureSpec(
    {"pixel_values": item}, "image", identifier=digest,
    mm_position=PlaceholderRange(offset=4, length=256), mm_hash=digest,
)
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import msgspec

from enginecore_wire.tensors import Tensor, unpack

if TYPE_CHECKING:
    from enginecore_wire.arrays import NumpyArray, TorchTensor

    NestedTensors: TypeAlias = Tensor | int | float | Sequence["NestedTensors"]
    Array: TypeAlias = Tensor | NumpyArray | TorchTensor
    NestedArrays: TypeAlias = Array | int | float | Sequence["NestedArrays"]
else:

    class _Nested(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, Tensor | int | float | list)

    class NestedTensors(metaclass=_Nested):
        """A tensor, a number, or a list of these to any depth."""


class PlaceholderRange(msgspec.Struct):
    """Where in the prompt an item's embeddings go, in tokens.

    `is_embed` has dtype bool and shape [length]: which of the positions are embeddings; None
    means all of them.
    """

    offset: int
    length: int
    is_embed: Tensor | None = None


class FieldOptions(msgspec.Struct, omit_defaults=True):
    """The arguments of a field kind; only those of the kind are set."""

    slices: list[Any] | None = None
    dim: int = 0
    batch_size: int | None = None
    keep_on_cpu: bool = False


class FieldKind(msgspec.Struct, array_like=True):
    """How the data of several items is one tensor: `name` is `batched`, `flat` or `shared`."""

    name: str
    options: FieldOptions = msgspec.field(default_factory=FieldOptions)

    @classmethod
    def batched(cls, *, keep_on_cpu: bool = False) -> Self:
        """Return the kind whose first dimension counts the items."""
        return cls("batched", FieldOptions(keep_on_cpu=keep_on_cpu))

    @classmethod
    def flat(cls, slices: Sequence[slice], *, dim: int = 0, keep_on_cpu: bool = False) -> Self:
        """Return the kind in which item i is `slices[i]` of dimension `dim`."""
        bounds = [[part.start, part.stop, part.step] for part in slices]
        return cls("flat", FieldOptions(slices=bounds, dim=dim, keep_on_cpu=keep_on_cpu))

    @classmethod
    def shared(cls, batch_size: int, *, keep_on_cpu: bool = False) -> Self:
        """Return the kind in which `batch_size` items have the same data."""
        return cls("shared", FieldOptions(batch_size=batch_size, keep_on_cpu=keep_on_cpu))


class MultiModalItem(msgspec.Struct):
    """One argument of the model's processor. Tensors have torch's dtype names."""

    data: NestedTensors | None
    field: FieldKind

    @classmethod
    def of(cls, data: "NestedArrays | None", field: FieldKind) -> Self:
        """Return the item of numpy arrays or torch tensors, which are shared, not copied.

        Raises:
            TypeError: `data` holds something that is neither array nor number nor list.
            ValueError: an array's dtype, layout or device cannot travel.
        """
        return cls(None if data is None else _nested(data), field)


class MultiModalFeatureSpec(msgspec.Struct):
    """One image, audio clip or video of a request.

    `data` is None when the engine has it in its cache, under `mm_hash`. `identifier` names the
    content for the engine's own caches.
    """

    data: dict[str, MultiModalItem] | None
    modality: str
    identifier: str
    mm_position: PlaceholderRange
    mm_hash: str | None = None


def unpack_nested(value: Any, aux: list[memoryview]) -> "NestedTensors":
    """Return the tensors of a decoded value: `[dtype, shape, data]`, a number, or a list.

    Raises:
        ValueError: it is something else.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | list):
        raise ValueError(f"expected a tensor, a number or a list, got {type(value).__name__}")
    if not isinstance(value, list):
        return value
    if value and isinstance(value[0], str):
        return unpack(value, aux)
    return [unpack_nested(item, aux) for item in value]


def _nested(data: Any) -> "NestedTensors":
    if isinstance(data, list | tuple):
        return [_nested(item) for item in data]
    if isinstance(data, int | float):
        return data
    return Tensor.of(data).with_torch_dtype()
