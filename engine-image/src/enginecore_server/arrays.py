"""Changing one position of an encoded msgpack array without decoding the others."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

_ITEMS: Final = msgspec.msgpack.Decoder(list[msgspec.Raw])
_ENCODER: Final = msgspec.msgpack.Encoder()


def with_item(
    body: bytes | memoryview, position: int, value: Any, padding: Sequence[Any] = ()
) -> bytes:
    """Return the array `body` with `value` at `position`; all other items keep their bytes.

    Args:
        body: a msgpack array.
        position: the index to replace.
        value: what to encode there.
        padding: if the array ends before `position`, the items that fill the gap.

    Raises:
        msgspec.DecodeError: `body` is no array.
    """
    items: list[Any] = _ITEMS.decode(body)
    if position < len(items):
        items[position] = value
    else:
        items.extend(padding[len(padding) - (position - len(items)) :])
        items.append(value)
    return _ENCODER.encode(items)
