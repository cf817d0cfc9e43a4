"""What Prometheus sees of a client, and when."""

import json
import urllib.request
from pathlib import Path

import pytest
import zmq
from prometheus_client import CollectorRegistry

from enginecore_client import (
    AsyncMPClient,
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    EngineDeadError,
    SamplingParams,
    SyncMPClient,
    start_metrics_server,
)
from enginecore_wire.control import Stats
from enginecore_wire.outputs import SchedulerStats
from support.coordination import coordinator_process, load_message
from support.eventually import eventually, eventually_async
from support.pod import client_addresses
from support.protocol_peer import ProtocolPeer

PROMPT = [7, 11, 13]
PARAMS = SamplingParams(max_tokens=3)


def value(registry: CollectorRegistry, name: str, engine: int = 0, **labels: str) -> float | None:
    return registry.get_sample_value(name, {"model_name": "peer", "engine": str(engine), **labels})


@pytest.mark.parametrize("where", ["STATS", "outputs"])
async def test_gauges_are_set_before_get_output_returns(peer: ProtocolPeer, where: str) -> None:
    peer.streaming = False
    registry = CollectorRegistry()
    async with AsyncMPClient(peer.addresses, registry=registry) as client:
        await client.add_request_async(EngineCoreRequest("a", PROMPT, sampling_params=PARAMS))
        await eventually_async(lambda: peer.adds)
        for turn in range(1, 50):
            stats = SchedulerStats(
                num_running_reqs=turn, num_waiting_reqs=2 * turn, kv_cache_usage=turn / 100
            )
            outputs = EngineCoreOutputs(
                outputs=[EngineCoreOutput(peer.adds[0].request_id, [turn])],
                scheduler_stats=stats if where == "outputs" else None,
            )
            if where == "STATS":
                peer.control(Stats(scheduler_stats=stats))
            peer.outputs(outputs)
            received = await client.get_output_async()
            assert received.outputs[0].new_token_ids == [turn]
            assert value(registry, "vllm:num_requests_running") == turn
            assert value(registry, "vllm:num_requests_waiting") == 2 * turn
            assert value(registry, "vllm:kv_cache_usage_perc") == turn / 100


async def test_a_coordinators_publish_reaches_the_gauges(peer: ProtocolPeer) -> None:
    registry = CollectorRegistry()
    with coordinator_process() as coordinator, zmq.Context() as context:
        addresses = {**peer.addresses, "stats_update_address": coordinator.publish_address}
        async with AsyncMPClient(addresses, registry=registry):
            with context.socket(zmq.PUSH) as push:
                push.connect(coordinator.report_address)
                push.send(load_message(0, waiting=3, running=5, usage=0.25))
                names = ("num_requests_waiting", "num_requests_running", "kv_cache_usage_perc")

                def shown() -> bool:
                    return [value(registry, f"vllm:{name}") for name in names] == [3, 5, 0.25]

                await eventually_async(shown, "the coordinator's loads are shown")


async def test_an_engine_that_never_worked_reads_zero(start_pod) -> None:
    pod = start_pod("--stats").wait_ready()
    registry = CollectorRegistry()
    labels = {"model_name": "stub", "engine": "0"}
    async with AsyncMPClient(client_addresses([pod]), registry=registry):
        name = "vllm:num_requests_running"
        await eventually_async(lambda: registry.get_sample_value(name, labels) == 0)
        assert 'vllm:num_requests_running{engine="0"' in pod.metrics()


async def test_counters_and_histograms(peer: ProtocolPeer) -> None:
    registry = CollectorRegistry()
    async with AsyncMPClient(peer.addresses, registry=registry) as client:
        for _ in range(2):
            assert len([o async for o in client.generate(PROMPT, PARAMS)]) == 3
        stream = client.generate(PROMPT, SamplingParams(max_tokens=1000))
        await anext(stream)
        assert value(registry, "enginecore_client_requests_in_flight") == 1
        await stream.aclose()
        prefix = "enginecore_client_"
        expected = {
            "prompt_tokens_total": 9,
            "time_to_first_token_seconds_count": 3,
            "e2e_request_latency_seconds_count": 2,
            "requests_in_flight": 0,
            "engine_ready": 1,
        }
        assert {name: value(registry, prefix + name) for name in expected} == expected
        assert value(registry, prefix + "requests_total", reason="length") == 2
        assert value(registry, prefix + "requests_total", reason="cancelled") == 1
        assert value(registry, prefix + "inter_token_latency_seconds_count") >= 4
        assert value(registry, prefix + "generation_tokens_total") >= 7


async def test_a_lost_engine_shows(peer: ProtocolPeer) -> None:
    registry = CollectorRegistry()
    async with AsyncMPClient(peer.addresses, registry=registry) as client:
        peer.stats(3, 1)
        await eventually_async(lambda: value(registry, "vllm:num_requests_running") == 3)
        peer.streaming = False
        stream = client.generate(PROMPT, PARAMS)
        await eventually_async(lambda: peer.adds)
        peer.die()
        with pytest.raises(EngineDeadError):
            await anext(stream)
        assert value(registry, "vllm:num_requests_running") is None
        assert value(registry, "enginecore_client_engine_losses_total") == 1
        assert value(registry, "enginecore_client_errors_total", type="EngineDeadError") == 1


async def test_series_of_a_removed_engine_disappear(tmp_path: Path) -> None:
    with ProtocolPeer(0) as one, ProtocolPeer(1) as two:
        path = tmp_path / "addresses.json"
        both = {
            "input_address": [one.input_address, two.input_address],
            "output_address": [one.output_address, two.output_address],
        }
        path.write_text(json.dumps(both))
        registry = CollectorRegistry()
        async with AsyncMPClient(path, registry=registry) as client:
            for peer in (one, two):
                peer.stats(1, 0)
            for rank in (0, 1):
                stream = client.generate(PROMPT, PARAMS, data_parallel_rank=rank)
                assert len([o async for o in stream]) == 3
                await eventually_async(
                    lambda rank=rank: value(registry, "vllm:num_requests_running", rank) == 1
                )
            path.write_text(json.dumps(one.addresses))
            await eventually_async(lambda: series_of(registry, "1") == [], "rank 1 is gone")
            assert len(series_of(registry, "0")) > 10


def series_of(registry: CollectorRegistry, engine: str) -> list[str]:
    return [
        sample.name
        for family in registry.collect()
        for sample in family.samples
        if sample.labels.get("engine") == engine
    ]


def test_metrics_are_served_by_both_families() -> None:
    server, thread = start_metrics_server(CollectorRegistry(), 0)
    try:
        for host in ("127.0.0.1", "[::1]"):
            with urllib.request.urlopen(f"http://{host}:{server.server_port}/metrics") as answer:
                assert answer.status == 200
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_metrics_over_http_and_registry_is_free_again(peer: ProtocolPeer) -> None:
    registry = CollectorRegistry()
    server, thread = start_metrics_server(registry, 0, "127.0.0.1")
    try:
        url = f"http://127.0.0.1:{server.server_port}/metrics"
        line = 'vllm:num_requests_running{engine="0",model_name="peer"} 5.0'

        def scraped() -> bool:
            with urllib.request.urlopen(url) as answer:
                return line in answer.read().decode()

        for _ in range(2):
            with SyncMPClient(peer.addresses, registry=registry):
                peer.stats(5, 2)
                eventually(scraped, "the gauge is exported")
        assert list(registry.collect()) == []
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
