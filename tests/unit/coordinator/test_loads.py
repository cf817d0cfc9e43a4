"""The book of loads with a virtual clock."""

import itertools
import math
import random

import msgspec
import pytest

from enginecore_coordinator.loads import LoadBook, RefusalReason, ReportRefusedError
from enginecore_wire.coordination import EngineLoad, LoadReport
from enginecore_wire.outputs import (
    EngineCoreOutput,
    EngineCoreOutputs,
    SchedulerStats,
    UtilityOutput,
)

T0 = 1000.0
IDLE = (0, 0, 0.0)


def stats(waiting: int = 0, running: int = 0, usage: float = 0.0) -> SchedulerStats:
    return SchedulerStats(num_waiting_reqs=waiting, num_running_reqs=running, kv_cache_usage=usage)


def message(rank: int, waiting: int = 0, running: int = 0, usage: float = 0.0) -> EngineCoreOutputs:
    return EngineCoreOutputs(rank, [], stats(waiting, running, usage), 1.0)


class Run:
    """A book driven by its own `due`, as the service drives it; keeps what was published."""

    def __init__(self, max_ranks: int = 8) -> None:
        self.now = T0
        self.book = LoadBook(max_ranks, T0)
        self.published: list[tuple[float, list[EngineLoad] | None]] = []
        self.timer = self.now

    def at(self, moment: float) -> "Run":
        """Let time pass until T0 + moment."""
        end = T0 + moment
        while self.timer <= end:
            self.now = max(self.now, self.timer)
            self._fire()
        self.now = end
        return self

    def report(self, *args: float) -> "Run":
        self.book.report(message(*args), self.now)  # type: ignore[arg-type]
        return self._came_in()

    def subscribe(self) -> "Run":
        self.book.subscribed()
        return self._came_in()

    def _came_in(self) -> "Run":
        if self.book.hastened(self.timer):
            self._fire()
        return self

    def _fire(self) -> None:
        taken = self.book.take(self.now)
        if taken is not None:
            self.published.append((round(self.now - T0, 6), taken.loads))
        self.timer = self.book.due(self.now)
        assert self.timer > self.now, "the timer would spin"


def test_empty_book_publishes_at_once_and_every_five_seconds_without_loads() -> None:
    run = Run().at(11)
    assert run.published == [(0.0, None), (5.0, None), (10.0, None)]


def test_change_after_a_quiet_time_is_published_at_once() -> None:
    run = Run().at(1).report(0, 2, 1, 0.25).at(2)
    assert run.published[1:] == [(1.0, [(2, 1, 0.25)])]


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        pytest.param([(1.0, 3), (1.03, 4), (1.06, 5)], [(1.0, 3), (1.1, 5)], id="last one counts"),
        pytest.param(
            [(1.0, 3), (1.03, 4), (1.06, 3)], [(1.0, 3), (1.1, 3)], id="change taken back"
        ),
        pytest.param([(1.0, 3), (1.5, 3), (2.0, 3)], [(1.0, 3)], id="same load again"),
        pytest.param(
            [(1 + i * 0.0031, i) for i in range(110)],
            [(1.0, 0), (1.1, 32), (1.2, 64), (1.3, 96), (1.4, 109)],
            id="a report every 3.1 ms",
        ),
    ],
)
def test_changes_are_published_at_most_every_100_ms(
    reports: list[tuple[float, int]], expected: list[tuple[float, int]]
) -> None:
    run = Run()
    for moment, waiting in reports:
        run.at(moment).report(0, waiting)
    run.at(3)
    assert run.published[1:] == [(at, [(waiting, 0, 0.0)]) for at, waiting in expected]


def test_unchanged_loads_are_published_every_five_seconds() -> None:
    run = Run().at(1)
    for second in range(1, 13):
        run.at(second).report(0, 1)
    run.at(12.5)
    assert run.published[1:] == [(1.0, [(1, 0, 0.0)]), (6.0, [(1, 0, 0.0)]), (11.0, [(1, 0, 0.0)])]


def test_new_subscriber_gets_the_loads_at_once_also_within_the_100_ms() -> None:
    run = Run().at(1).report(0, 1).at(1.02).report(0, 2).at(1.04).subscribe().at(1.5)
    assert run.published[1:] == [(1.0, [(1, 0, 0.0)]), (1.04, [(2, 0, 0.0)])]


def test_index_is_rank_and_gaps_are_idle() -> None:
    run = Run().at(1).report(3, 1, 1, 0.5).at(1.05).report(1, 7).at(2)
    assert run.published[-1][1] == [IDLE, (7, 0, 0.0), IDLE, (1, 1, 0.5)]


def test_silent_rank_counts_as_idle_after_four_seconds_and_is_forgotten_after_a_minute() -> None:
    run = Run().at(1).report(1, 5, 5, 0.5)
    for second in range(2, 70):
        run.at(second).report(0, 1)
    seen = {at: loads for at, loads in run.published if loads}
    assert seen[1.0] == [IDLE, (5, 5, 0.5)]
    assert seen[5.0] == [(1, 0, 0.0), IDLE]
    assert seen[61.0] == [(1, 0, 0.0)]
    assert run.book.live(run.now).keys() == {0}
    assert run.book.reports(run.now).keys() == {0}


def test_rank_that_comes_back_with_its_old_load_is_published() -> None:
    run = Run().at(1).report(0, 5).at(6).report(0, 5).at(6.2)
    assert [loads for _, loads in run.published[1:]] == [[(5, 0, 0.0)], [IDLE], [(5, 0, 0.0)]]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (message(8), RefusalReason.RANK_OUT_OF_RANGE),
        (message(-1), RefusalReason.RANK_OUT_OF_RANGE),
        (EngineCoreOutputs(0, [EngineCoreOutput("a", [1])], stats()), RefusalReason.HAS_OUTPUTS),
        (EngineCoreOutputs(0, [], stats(), 0.0, UtilityOutput(1)), RefusalReason.HAS_OUTPUTS),
        (EngineCoreOutputs(0, [], None), RefusalReason.NO_STATS),
        (message(0, -1), RefusalReason.VALUE_OUT_OF_RANGE),
        (message(0, 0, -1), RefusalReason.VALUE_OUT_OF_RANGE),
        (message(0, 0, 0, 1.1), RefusalReason.VALUE_OUT_OF_RANGE),
        (message(0, 0, 0, -0.1), RefusalReason.VALUE_OUT_OF_RANGE),
        (message(0, 0, 0, math.nan), RefusalReason.VALUE_OUT_OF_RANGE),
        (message(0, 0, 0, math.inf), RefusalReason.VALUE_OUT_OF_RANGE),
    ],
)
def test_bad_report_is_refused_and_changes_nothing(
    bad: EngineCoreOutputs, reason: RefusalReason
) -> None:
    run = Run().at(1).report(0, 4)
    with pytest.raises(ReportRefusedError) as refused:
        run.book.report(bad, run.now)
    assert refused.value.reason == reason
    assert run.book.loads(run.now) == [(4, 0, 0.0)]


def test_published_bytes_are_those_of_vllm() -> None:
    run = Run().at(1).report(0, 0, 1, 0.25).report(1, 2, 3, 0.5)
    report = LoadReport(run.book.loads(run.now), 3, True)
    assert msgspec.msgpack.encode(report).hex() == (
        "9392930001cb3fd0000000000000930203cb3fe000000000000003c3"
    )


@pytest.mark.parametrize("seed", range(20))
def test_any_history_keeps_the_intervals_and_ends_at_the_truth(seed: int) -> None:
    """Gaps between publications lie in [100 ms, 5 s] unless a subscriber came, and the last
    publication shows the loads of the last moment at which they could be published."""
    chance, run, moment, subscribed = random.Random(seed), Run(), 0.0, {0.0}
    for _ in range(200):
        moment += chance.choice((0.001, 0.02, 0.09, 0.1, 0.3, 4.0))
        run.at(moment)
        if chance.random() < 0.05:
            run.subscribe()
            subscribed.add(round(moment, 6))
        else:
            run.report(chance.randrange(4), chance.randrange(3), chance.randrange(3))
    run.at(moment + 0.1)
    times = [at for at, _ in run.published]
    gaps = [(b - a, b) for a, b in itertools.pairwise(times)]
    assert all(gap <= 5.000001 for gap, _ in gaps)
    assert all(gap >= 0.099999 or at in subscribed for gap, at in gaps)
    assert run.published[-1][1] == run.book.loads(run.now)
