"""Who is behind the connections of a bound socket: known by descriptor, or a stranger. No
socket, no clock."""

import logging
from collections.abc import Sequence
from typing import Final

from enginecore_wire.frames import Frame

_LOG = logging.getLogger("enginecore_client")

MUTE_SECONDS: Final = 1.0
"""An engine speaks as soon as it is connected."""

_OUTPUTS: Final = 0x99
"""The first byte of EngineCoreOutputs since 0.32, an array of nine."""

_ONE_BYTE: Final = 0x80
"""Numbers below this one are a byte of msgpack."""

MOST_STRANGERS: Final = 64
"""How many names are kept of those who are refused."""


class Peers:
    """The connections of one bound socket.

    A connection is unknown until a message shows whose it is.
    """

    def __init__(self) -> None:
        self.unknown: dict[int, float] = {}
        self._ranks: dict[int, int] = {}

    def accepted(self, descriptor: int, now: float) -> None:
        """Take note of a new connection (whose first message may have been read before)."""
        if descriptor not in self._ranks:
            self.unknown[descriptor] = now

    def know(self, descriptor: int, rank: int) -> None:
        """Take note of whose connection it is."""
        self.unknown.pop(descriptor, None)
        self._ranks[descriptor] = rank

    def succeed(self, descriptor: int, rank: int) -> None:
        """Take note of a new process of a rank; what an older one had counts no more."""
        self.forget(rank)
        self.know(descriptor, rank)

    def forget(self, rank: int) -> None:
        """Forget whose the connections of a rank are: their end will mean nothing."""
        self._ranks = {d: r for d, r in self._ranks.items() if r != rank}

    def disconnected(self, descriptor: int) -> int | None:
        """Take note of the end of a connection; return whose it was, if that is known."""
        self.unknown.pop(descriptor, None)
        return self._ranks.pop(descriptor, None)

    def rank(self, descriptor: int) -> int | None:
        """Return whose connection it is, if that is known."""
        return self._ranks.get(descriptor)

    def ranks(self) -> set[int]:
        """Return the ranks that are known to be connected."""
        return set(self._ranks.values())

    def mute(self, now: float) -> list[int]:
        """Return the connections that have said nothing for MUTE_SECONDS."""
        return [d for d, since in self.unknown.items() if now - since >= MUTE_SECONDS]


class Strangers:
    """Says once of each engine that it dialled in and is not used.

    Args:
        address: where they dial in.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._named: set[bytes] = set()
        self._mute = 0

    def refuse(self, identity: bytes, ranks: Sequence[int]) -> None:
        """Take note of an engine whose name is none of `ranks`."""
        if identity not in self._named and len(self._named) < MOST_STRANGERS:
            self._named.add(identity)
            _LOG.warning(
                "an engine named %s dialled in at %s and is ignored; this client's ranks are %s",
                identity.hex(), self._address, ranks,
            )  # fmt: skip

    def count(self, mute: int, ranks: Sequence[int]) -> None:
        """Take note of how many connections say nothing although nobody is expected any more.

        The ROUTER keeps the first engine of a name and hears nothing of a second one.
        """
        if mute > self._mute:
            _LOG.warning(
                "%d connection(s) to %s say nothing although every engine is connected: an engine "
                "with a rank in use dialled in (in use: %s); give each its own rank",
                mute, self._address, ranks,
            )  # fmt: skip
        self._mute = max(mute, 0)


def rank_in(body: Frame) -> int | None:
    """Return the rank at the beginning of an EngineCoreOutputs body, None if it is none."""
    if len(body) < 2:
        return None
    if body[0] == _OUTPUTS and body[1] < _ONE_BYTE:
        return body[1]
    start = 1 if 0x91 <= body[0] <= 0x9F else 3 if body[0] == 0xDC else 0
    if not start or len(body) <= start:
        return None
    first = body[start]
    if first < _ONE_BYTE:
        return first
    size = {0xCC: 1, 0xCD: 2}.get(first)
    if size is None or len(body) <= start + size:
        return None
    return int.from_bytes(body[start + 1 : start + 1 + size], "big")
