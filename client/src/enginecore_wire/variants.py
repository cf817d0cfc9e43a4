"""One message type at the positions of another release.

A Variant is an array-like struct made of the fields of a type of this package, in another
order; it converts between the two. Types of this package are always those of the newest
release, so the rest of the code knows one type per message.
"""

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

import msgspec

T = TypeVar("T", bound=msgspec.Struct)

Take = Callable[[Any], Any]
"""Takes the value of one field out of a whole message."""


class Variant(Generic[T]):
    """`kind` at the positions `order`.

    Args:
        kind: the type of this package.
        order: field names by position. A name that `kind` lacks is the other release's alone:
            it is read as anything and written as nil, unless the arguments below say more.
        required: how many positions must be there; the others take defaults.
        types: types of fields on the wire where they are not those of `kind`.
        read: fields of `kind` that are made of something else than the one field of that name.
        write: fields on the wire of which the same is true.
    """

    def __init__(
        self,
        kind: type[T],
        order: Sequence[str],
        *,
        required: int = 0,
        types: Mapping[str, Any] | None = None,
        read: Mapping[str, Take] | None = None,
        write: Mapping[str, Take] | None = None,
    ) -> None:
        own = {field.name: field for field in msgspec.structs.fields(kind)}
        types, write = types or {}, write or {}
        self.order: Final = tuple(order)
        self._kind = kind
        self._made: dict[str, Take] = dict(read or {})
        self._same = tuple(name for name in order if name in own and name not in self._made)
        self._get: Take = attrgetter(*self._same)
        self._writers: list[Take] = [
            write.get(name) or (attrgetter(name) if name in own else _nothing) for name in order
        ]
        self.wire: Final[type[Any]] = msgspec.defstruct(
            kind.__name__,
            [
                _declare(name, own.get(name), types.get(name), place < required)
                for place, name in enumerate(order)
            ],
            array_like=True,
        )

    def read(self, message: Any) -> T:
        """Return what a decoded `wire` says, as `kind`."""
        values = dict(zip(self._same, self._get(message), strict=True))
        for name, take in self._made.items():
            values[name] = take(message)
        return self._kind(**values)

    def write(self, message: T) -> list[Any]:
        """Return the items of the array that stands for `message` on the wire."""
        return [take(message) for take in self._writers]


def optional(name: str, convert: Take) -> Take:
    """Return what takes the field `name` and converts it unless it is nil."""

    def take(message: Any) -> Any:
        value = getattr(message, name)
        return None if value is None else convert(value)

    return take


def _nothing(_message: Any) -> None:
    return None


def _declare(name: str, field: Any, kind: Any, required: bool) -> Any:
    """Return the definition of one field, as msgspec.defstruct takes it."""
    if kind is None:
        kind = Any if field is None else field.type
    if required:
        return name, kind
    if field is None or field.required:
        return name, kind, None
    if field.default_factory is not msgspec.NODEFAULT:
        return name, kind, msgspec.field(default_factory=field.default_factory)
    return name, kind, field.default
