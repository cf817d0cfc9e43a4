"""Gauges of loads follow the book: a silent rank has no series."""

from prometheus_client import CollectorRegistry

from enginecore_coordinator.loads import LoadBook
from enginecore_coordinator.metrics import LoadCollector
from enginecore_wire.outputs import EngineCoreOutputs, SchedulerStats


def test_each_reporting_rank_has_its_series_and_a_silent_one_none() -> None:
    clock = [0.0]
    book = LoadBook(8, 0.0)
    registry = CollectorRegistry()
    registry.register(LoadCollector(book, lambda: clock[0]))

    def value(name: str, rank: str) -> float | None:
        return registry.get_sample_value(f"enginecore_coordinator_{name}", {"engine": rank})

    for rank, waiting in ((0, 3), (1, 5)):
        stats = SchedulerStats(num_waiting_reqs=waiting, num_running_reqs=1, kv_cache_usage=0.5)
        book.report(EngineCoreOutputs(rank, [], stats), 0.0)
    assert (value("waiting_requests", "0"), value("waiting_requests", "1")) == (3, 5)
    assert (value("running_requests", "0"), value("kv_cache_usage_ratio", "1")) == (1, 0.5)
    clock[0] = 3.0
    book.report(EngineCoreOutputs(0, [], SchedulerStats()), 3.0)
    clock[0] = 4.5
    assert (value("waiting_requests", "0"), value("waiting_requests", "1")) == (0, None)
    assert registry.get_sample_value("enginecore_coordinator_engines") == 1
