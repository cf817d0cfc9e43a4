"""What clients and the coordinator are told of the engine's load, and how often."""

import pytest

from enginecore_server.load import EngineLoad, Throttle
from enginecore_wire.outputs import SchedulerStats

BUSY = SchedulerStats(num_running_reqs=3, num_waiting_reqs=2, kv_cache_usage=0.5)


def test_the_newest_stats_are_shown() -> None:
    load = EngineLoad()
    load.report(SchedulerStats(), 1.0)
    load.report(BUSY, 2.0)
    assert load.current(5) == BUSY
    assert load.timestamp(5, 9.0) == 2.0


@pytest.mark.parametrize("in_flight", [0, 4])
def test_what_the_engine_did_not_say_is_of_now(in_flight: int) -> None:
    load = EngineLoad()
    assert load.timestamp(in_flight, 9.0) == 9.0
    load.report(BUSY, 2.0)
    assert load.timestamp(0, 9.0) == 9.0


def test_an_engine_without_requests_is_idle_whatever_it_said() -> None:
    load = EngineLoad()
    load.report(BUSY, 1.0)
    assert load.current(0) == SchedulerStats()


def test_an_engine_that_reports_nothing_is_described_by_its_requests() -> None:
    assert EngineLoad().current(4) == SchedulerStats(num_running_reqs=4)


@pytest.mark.parametrize(
    ("most", "offers", "sent"),
    [
        (None, [(0.0, 1), (0.05, 2), (0.1, 2), (0.2, 2), (5.0, 2)], [0.0, 0.1]),
        (1.0, [(0.0, 1), (0.5, 1), (1.0, 1), (1.05, 2), (1.1, 2)], [0.0, 1.0, 1.1]),
        (None, [(0.0, 1), (0.01, 2), (0.02, 1), (0.2, 1)], [0.0]),
    ],
)
def test_throttle(most: float | None, offers: list[tuple[float, int]], sent: list[float]) -> None:
    throttle = Throttle(0.1, most)
    assert [
        now
        for now, running in offers
        if throttle.due(SchedulerStats(num_running_reqs=running), now)
    ] == sent
