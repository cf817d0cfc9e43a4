"""Which rank is behind which connection of a bound socket, by descriptor. No socket, no clock."""

from typing import Final

MUTE_SECONDS: Final = 1.0
"""An engine speaks as soon as it is connected."""


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
