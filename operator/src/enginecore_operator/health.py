"""Whether the operator is sound: it hears the API server and its watches miss nothing."""

from collections.abc import Callable, Sequence


class Health:
    """Book of the signs of life. `clock` gives monotonic seconds."""

    def __init__(self, clock: Callable[[], float], resync_seconds: float) -> None:
        self._clock = clock
        self._longest_silence = 3 * resync_seconds + 60
        self._listed_at = clock()
        self._missed: Sequence[str] = ()

    def listed(self) -> None:
        """Take note that everything was listed."""
        self._listed_at = self._clock()

    def resynced(self, missed: Sequence[str]) -> None:
        """Take note of a comparison of cache and API server; `missed` are kinds."""
        self._missed = tuple(missed)

    def problems(self) -> list[str]:
        """Return what is wrong; nothing for a sound operator."""
        found = []
        silence = self._clock() - self._listed_at
        if silence > self._longest_silence:
            found.append(f"the API server was last read {silence:.0f} s ago")
        if self._missed:
            found.append(f"the watch is dead: {', '.join(self._missed)}")
        return found
