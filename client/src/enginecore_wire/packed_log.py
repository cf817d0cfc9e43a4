"""Log lines where little room is: compressed, as text that JSON need not escape."""

import zlib
from base64 import b85decode, b85encode
from collections.abc import Sequence
from typing import Final

MOST_BYTES: Final = 64 << 10
"""No log is longer once it is unpacked: who packs may not be who unpacks."""


def pack(lines: Sequence[str]) -> str:
    """Return lines as one short text."""
    text = "\n".join(lines).encode("utf-8", "replace")
    return b85encode(zlib.compress(text, 9)).decode()


def unpack(text: str) -> list[str]:
    """Return the lines of a packed text, [] where it is none; at most MOST_BYTES of them."""
    try:
        found = zlib.decompressobj().decompress(b85decode(text), MOST_BYTES)
    except (ValueError, zlib.error):
        return []
    return found.decode("utf-8", "replace").split("\n") if found else []
