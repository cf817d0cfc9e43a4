"""The scheduler's state as clients and the coordinator are to see it, and when to tell them."""

from typing import Final

from enginecore_wire.outputs import SchedulerStats

STATS_SECONDS: Final = 0.1
REPORT_SECONDS: Final = 0.05
REPORT_ALWAYS_SECONDS: Final = 1.0


class EngineLoad:
    """Keeps the newest scheduler stats.

    An engine that holds no request of any client is idle whatever it said last: after an abort
    engines take no further step and so report none. An engine that never reports stats is
    described by the requests it holds.
    """

    def __init__(self) -> None:
        self._stats: SchedulerStats | None = None
        self._timestamp = 0.0

    def report(self, stats: SchedulerStats, timestamp: float) -> None:
        """Take stats from the engine; `timestamp` is its monotonic clock in seconds."""
        self._stats = stats
        self._timestamp = timestamp

    def current(self, in_flight: int) -> SchedulerStats:
        """Return the state now, with `in_flight` unfinished requests."""
        if in_flight == 0:
            return SchedulerStats()
        if self._stats is None:
            return SchedulerStats(num_running_reqs=in_flight)
        return self._stats

    def timestamp(self, in_flight: int, now: float) -> float:
        """Return the time that `current` is of: the engine's where it said so, else `now`.

        Both are the host's monotonic clock, in seconds.
        """
        return now if in_flight == 0 or self._stats is None else self._timestamp


class Throttle:
    """Lets a value through when it changed, not too often, and again after a while.

    Args:
        least_seconds: time between two values.
        most_seconds: time after which the same value goes through again; None for never.
    """

    def __init__(self, least_seconds: float, most_seconds: float | None) -> None:
        self._least = least_seconds
        self._most = most_seconds
        self._last: SchedulerStats | None = None
        self._at = float("-inf")

    def due(self, value: SchedulerStats, now: float) -> bool:
        """Say whether `value` is to be sent now, and if so note it as sent."""
        since = now - self._at
        if since < self._least:
            return False
        if value == self._last and (self._most is None or since < self._most):
            return False
        self._last, self._at = value, now
        return True
