"""Whether the operator is sound: it hears the API server and its watches miss nothing."""

from collections.abc import Callable, Sequence
from typing import Final

SILENCE_SECONDS: Final = 30.0
"""Three times as long as the Lease: a moment's outage of the API server restarts nobody."""
COMPARISON_SECONDS: Final = 60.0
"""How much longer than the period of three comparisons with the API server they may take."""


class Health:
    """Book of the signs of life. `clock` gives monotonic seconds."""

    def __init__(self, clock: Callable[[], float], resync_seconds: float) -> None:
        self._clock = clock
        self._longest_comparison = 3 * resync_seconds + COMPARISON_SECONDS
        self._lease_at = self._listed_at = clock()
        self._missed: Sequence[str] = ()

    def lease_served(self) -> None:
        """Take note that the API server let this process renew, or look at, the Lease."""
        self._lease_at = self._clock()

    def listed(self) -> None:
        """Take note that everything was listed."""
        self._listed_at = self._clock()

    def resynced(self, missed: Sequence[str]) -> None:
        """Take note of a comparison of cache and API server; `missed` are kinds."""
        self._missed = tuple(missed)

    def problems(self) -> list[str]:
        """Return what is wrong; nothing for a sound operator."""
        found = []
        silence = self._clock() - self._lease_at
        if silence > SILENCE_SECONDS:
            found.append(f"the API server last served the Lease {silence:.0f} s ago")
        unread = self._clock() - self._listed_at
        if unread > self._longest_comparison:
            found.append(f"everything was last listed {unread:.0f} s ago")
        if self._missed:
            found.append(f"the watch is dead: {', '.join(self._missed)}")
        return found
