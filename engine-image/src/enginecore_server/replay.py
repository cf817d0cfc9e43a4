"""The engine messages that a client may not have got, kept for when it comes back.

A broken connection drops what was accepted for it, so what was sent last is kept a while. What
cannot be kept cheaply (more than one frame, or a large one) ends the row: nothing from before it
is sent again.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from enginecore_wire.outputs import is_last_word

KEPT_BYTES: Final = 1 << 20
"""Of one client."""


class SentMessages:
    """The last engine messages of one client, in one row up to the newest."""

    __slots__ = ("_bytes", "_kept")

    def __init__(self) -> None:
        self._kept: deque[bytes] = deque()
        self._bytes = 0

    def add(self, body: bytes) -> None:
        """Note a message of one frame."""
        kept = self._kept
        kept.append(body)
        self._bytes += len(body)
        while self._bytes > KEPT_BYTES:
            self._bytes -= len(kept.popleft())

    def add_frames(self, frames: Sequence[Any]) -> None:
        """Note a message of any frames."""
        if len(frames) == 1 and isinstance(frames[0], bytes):
            self.add(frames[0])
        else:
            self._kept.clear()
            self._bytes = 0

    def before(self, newest: int, count: int) -> list[bytes]:
        """Return the `count` messages that were sent before the `newest` ones, the oldest first;
        none if not all of them were kept."""
        end = len(self._kept) - newest
        return [self._kept[index] for index in range(end - count, end)] if count <= end else []


def is_engine_message(frames: Sequence[Any]) -> bool:
    """Say whether a message to a client counts as one of the engine's."""
    return len(frames[0]) != 1 and not is_last_word(frames)
