"""What engines say of their load reaches the client's metrics."""

from functools import partial
from typing import Final

from enginecore_client.testing._waiting import eventually
from enginecore_client.testing.behaviours._registry import Running, request, shared

RUNNING: Final = "vllm:num_requests_running"
GAUGES: Final = (RUNNING, "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")


@shared()
def stats_reach_the_gauge_before_the_output(run: Running) -> None:
    """When `get_output` returns a message with stats, the gauges show them already."""
    run.face.add(request("measured", run.engine.long_tokens))
    message = run.face.get_output()
    while message.scheduler_stats is None:
        message = run.face.get_output()
    running = run.gauge(RUNNING, message.engine_index)
    run.drop("measured")
    assert running == message.scheduler_stats.num_running_reqs


@shared()
def idle_engine_reads_zero(run: Running) -> None:
    """The gauges of an engine that has finished its requests are there, and zero."""
    for rank in range(run.cell.ranks):
        assert len(run.read(8, **run.placed(rank))) == 8
        for name in GAUGES:
            eventually(partial(_is_zero, run, name, rank), f"{name} of engine {rank} is 0")


@shared()
def tokens_are_counted(run: Running) -> None:
    """The client counts the tokens that it delivers."""
    name = "enginecore_client_generation_tokens_total"
    before = sum(run.gauge(name, rank) or 0 for rank in range(run.cell.ranks))
    run.read(25)
    after = sum(run.gauge(name, rank) or 0 for rank in range(run.cell.ranks))
    assert after - before == 25


def _is_zero(run: Running, name: str, rank: int) -> bool:
    return run.gauge(name, rank) == 0
