"""What a client's metrics make of what happens to its engines."""

from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Gauge

from enginecore_client import (
    EngineCoreRequest,
    FinishReason,
    RequestRejectedError,
    SamplingParams,
)
from enginecore_client._metrics import Metrics
from enginecore_wire.control import Draining, Stats
from enginecore_wire.coordination import EngineLoad, LoadReport
from enginecore_wire.outputs import ENGINE_CORE_DEAD, SchedulerStats
from support.memory_link import MemoryLink

PREFIX = "enginecore_client_"


def test_a_registry_that_has_such_metrics_is_refused_and_stays_as_it_was() -> None:
    registry = CollectorRegistry()
    own = Gauge("enginecore_client_engine_ready", "the application's", registry=registry)
    with pytest.raises(RequestRejectedError, match=r"^registry: .*give each client") as caught:
        Metrics(registry)
    assert caught.value.field == "registry"
    registry.unregister(own)
    Metrics(registry).close()
    assert list(registry.collect()) == []


class Watched:
    """A client in memory, and its metrics."""

    def __init__(self, *names: str) -> None:
        self.registry = CollectorRegistry()
        self.metrics = Metrics(self.registry)
        self.link = MemoryLink(ready=True)
        self.see(self.link.move(*names))

    def see(self, events: list[Any]) -> list[Any]:
        for event in events:
            self.metrics.observe(event)
        return events

    def add(self, rank: int = 0) -> None:
        request = EngineCoreRequest(
            "r", [1, 2], sampling_params=SamplingParams(max_tokens=9), data_parallel_rank=rank
        )
        self.link.core.requests.add(request, object(), self.link.now)
        self.see(self.link.run())

    def value(self, name: str, engine: int = 0, **labels: str) -> float | None:
        where = {"model_name": "m", "engine": str(engine), **labels}
        return self.registry.get_sample_value(name, where)

    def ready(self, engine: int = 0) -> float | None:
        return self.value(f"{PREFIX}engine_ready", engine)

    def losses(self, engine: int = 0) -> float | None:
        return self.value(f"{PREFIX}engine_losses_total", engine)


def test_a_retired_pod_is_not_ready_though_its_streams_go_on() -> None:
    watched = Watched("a")
    link = watched.link
    watched.add()
    old = link.pod("a")
    link.ranks["b"], link.answers = 0, False
    watched.see(link.move("b"))
    assert watched.ready() == 0
    assert watched.value("vllm:num_requests_running") is None
    watched.see(link.token(old, 0, 1, reason=FinishReason.STOP))
    assert watched.ready() == 0
    watched.see(link.answer(link.pod("b")))
    assert (watched.ready(), watched.losses()) == (1, None)


def test_a_retired_pod_without_streams_is_not_ready_either() -> None:
    watched = Watched("a")
    link = watched.link
    link.ranks["b"], link.answers = 0, False
    watched.see(link.move("b"))
    assert (watched.ready(), watched.losses()) == (0, None)


def test_the_death_of_a_replaced_pod_is_counted_and_changes_nothing_else() -> None:
    watched = Watched("a")
    link = watched.link
    watched.add()
    old = link.pod("a")
    link.ranks["b"] = 0
    watched.see(link.move("b"))
    stats = Stats(scheduler_stats=SchedulerStats(num_running_reqs=5))
    watched.see(link.control(link.pod("b"), stats))
    watched.see(link.raw(old, ENGINE_CORE_DEAD))
    assert (watched.ready(), watched.losses()) == (1, 1)
    assert watched.value("vllm:num_requests_running") == 5
    assert watched.value(f"{PREFIX}errors_total", type="EngineDeadError") == 1


def test_the_load_shown_is_the_one_that_engines_are_chosen_by() -> None:
    """A coordinator's report comes later than the engine's own and is what counts from then on."""
    watched = Watched("a")
    link, load = watched.link, f"{PREFIX}engine_load"
    pod = link.pod("a")
    own = Stats(scheduler_stats=SchedulerStats(num_running_reqs=5, num_waiting_reqs=2))
    assert watched.value(load) is None
    watched.see(link.control(pod, own))
    assert watched.value(load) == 7
    watched.see(link.loads(LoadReport([EngineLoad(1, 3, 0.0)])))
    assert watched.value(load) == 4
    watched.see(link.control(pod, own))
    assert (watched.value(load), watched.value("vllm:num_requests_running")) == (4, 5)
    watched.see(link.raw(pod, ENGINE_CORE_DEAD))
    assert watched.value(load) is None


def test_a_death_and_a_drained_end() -> None:
    watched = Watched("a", "b")
    link = watched.link
    link.answers = False
    watched.see(link.raw(link.pod("a"), ENGINE_CORE_DEAD))
    assert (watched.ready(0), watched.losses(0)) == (0, 1)
    watched.see(link.control(link.pod("b"), Draining()))
    watched.see(link.down(link.pod("b")))
    watched.see(link.wait(1.0))
    assert (watched.ready(1), watched.losses(1)) == (0, None)


def test_the_series_of_a_removed_engine_go_away() -> None:
    watched = Watched("a", "b")
    watched.see(watched.link.move("a"))
    assert (watched.ready(0), watched.ready(1)) == (1, None)


def test_a_stop_string_counts_as_stop() -> None:
    watched = Watched("a")
    link = watched.link
    watched.add()
    (record,) = link.core._ledger.named("r")
    record.stopped = True
    link.core.requests.abort_record(record)
    watched.see(link.run())
    assert watched.value(f"{PREFIX}requests_total", reason="stop") == 1
    assert watched.value(f"{PREFIX}requests_total", reason="cancelled") is None
    assert watched.value(f"{PREFIX}e2e_request_latency_seconds_count") == 1


def test_the_first_token_counts_as_such_when_two_messages_come_at_once() -> None:
    watched = Watched("a")
    link = watched.link
    watched.add()
    pod = link.pod("a")
    link.now += 0.5
    events = link.token(pod, 0, 1)
    events += link.token(pod, 0, 2)
    watched.see(events)
    assert watched.value(f"{PREFIX}time_to_first_token_seconds_sum") == 0.5
    assert watched.value(f"{PREFIX}time_to_first_token_seconds_count") == 1
    assert watched.value(f"{PREFIX}inter_token_latency_seconds_count") == 1
