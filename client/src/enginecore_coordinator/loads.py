"""The book of loads: what each rank reported last, and when what is published. No I/O, no clock."""

import math
from enum import StrEnum
from typing import NamedTuple

from enginecore_wire.coordination import EngineLoad, LoadReport
from enginecore_wire.outputs import EngineCoreOutputs

IDLE = EngineLoad(0, 0, 0.0)


class RefusalReason(StrEnum):
    """Why a report changed nothing."""

    NOT_A_REPORT = "not_a_report"
    RANK_OUT_OF_RANGE = "rank_out_of_range"
    HAS_OUTPUTS = "has_outputs"
    NO_STATS = "no_stats"
    VALUE_OUT_OF_RANGE = "value_out_of_range"


class ReportRefusedError(ValueError):
    """A report that is ignored; `reason` is what metrics count it under."""

    def __init__(self, reason: RefusalReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Pace(NamedTuple):
    """When to publish, in seconds.

    `changed`: least time between two publications of changed loads; `unchanged`: longest time
    without one; `silent`: a rank without reports this long counts as idle; `forgotten`: and this
    long as removed.
    """

    changed: float = 0.1
    unchanged: float = 5.0
    silent: float = 4.0
    forgotten: float = 60.0


STANDARD_PACE = Pace()


class RankReport(NamedTuple):
    """The last report of one rank; `at` is the coordinator's monotonic clock in seconds."""

    load: EngineLoad
    at: float


class LoadBook:
    """Loads by rank, and the decision when to publish them.

    Every `now` is the same monotonic clock in seconds and never runs backwards.

    Args:
        max_ranks: ranks from this one on are refused, which bounds what is kept and published.
        now: the time the book is opened; the first publication is due at once.
        pace: the intervals.
    """

    def __init__(self, max_ranks: int, now: float, pace: Pace = STANDARD_PACE) -> None:
        self._max_ranks = max_ranks
        self._pace = pace
        self._reports: dict[int, RankReport] = {}
        self._published: list[EngineLoad] = []
        self._published_at = now
        self._changed = False
        self._wanted = True

    def report(self, message: EngineCoreOutputs, now: float) -> None:
        """Take in the report of one engine.

        Raises:
            ReportRefusedError: it is no report of a rank below `max_ranks` with sane numbers.
        """
        rank, load = message.engine_index, self._checked_load(message)
        last = self._reports.get(rank)
        if last is None or last.load != load or self._is_silent(last, now):
            self._changed = True
        self._reports[rank] = RankReport(load, now)

    def subscribed(self) -> None:
        """Note a new subscriber: the next publication is due at once."""
        self._wanted = True

    def loads(self, now: float) -> list[EngineLoad]:
        """Return the load of every rank up to the highest one known; silent ranks are idle."""
        known, live = self.reports(now), self.live(now)
        return [live.get(rank, IDLE) for rank in range(max(known, default=-1) + 1)]

    def reports(self, now: float) -> dict[int, RankReport]:
        """Return the last report of each rank that is not forgotten, by rank."""
        kept = self._reports.items()
        return {rank: last for rank, last in sorted(kept) if now < last.at + self._pace.forgotten}

    def live(self, now: float) -> dict[int, EngineLoad]:
        """Return the loads of the ranks that are not silent, by rank."""
        known = self.reports(now).items()
        return {rank: last.load for rank, last in known if not self._is_silent(last, now)}

    def take(self, now: float) -> LoadReport | None:
        """Return what is to be published now, which then counts as published, or None.

        A load that changed and changed back is published too: clients count their own requests
        on top of what was published last, and start afresh with each publication.
        While no rank is known, the report has no loads: vLLM's front end then keeps its own.
        """
        self._reports = self.reports(now)
        loads = self.loads(now)
        changed = self._changed or loads != self._published
        least = self._pace.changed if changed else self._pace.unchanged
        if not self._wanted and now < self._published_at + least:
            return None
        self._wanted = self._changed = False
        self._published, self._published_at = loads, now
        return LoadReport(loads or None)

    def due(self, now: float) -> float:
        """Return when `take` is to be called next if no report or subscriber comes before."""
        if self._wanted:
            return now
        throttled = self._published_at + self._pace.changed
        if self._changed:
            return max(now, throttled)
        idle = self._published_at + self._pace.unchanged
        return min(idle, max(throttled, self._next_expiry(now)))

    def hastened(self, due: float) -> bool:
        """Say whether what came in since `take` is to be published before the time `due`."""
        return self._wanted or (self._changed and self._published_at + self._pace.changed < due)

    def _checked_load(self, message: EngineCoreOutputs) -> EngineLoad:
        rank, stats = message.engine_index, message.scheduler_stats
        if not 0 <= rank < self._max_ranks:
            raise ReportRefusedError(
                RefusalReason.RANK_OUT_OF_RANGE,
                f"engine_index {rank} is not in 0..{self._max_ranks - 1}; raise --max-ranks",
            )
        if message.outputs or message.utility_output is not None:
            raise ReportRefusedError(
                RefusalReason.HAS_OUTPUTS, f"rank {rank} sent outputs: they belong to its clients"
            )
        if stats is None:
            raise ReportRefusedError(
                RefusalReason.NO_STATS, f"rank {rank} sent no scheduler_stats: nothing to publish"
            )
        load = EngineLoad(stats.num_waiting_reqs, stats.num_running_reqs, stats.kv_cache_usage)
        if load.waiting < 0 or load.running < 0 or not 0.0 <= load.kv_usage <= 1.0:
            raise ReportRefusedError(
                RefusalReason.VALUE_OUT_OF_RANGE,
                f"rank {rank} sent {load}: counts are at least 0, kv_usage is between 0 and 1",
            )
        return load

    def _is_silent(self, last: RankReport, now: float) -> bool:
        return now >= last.at + self._pace.silent

    def _next_expiry(self, now: float) -> float:
        """Return when the passing of time alone changes the loads next."""
        ends = (
            last.at + span
            for last in self._reports.values()
            for span in (self._pace.silent, self._pace.forgotten)
        )
        return min((end for end in ends if end > now), default=math.inf)
