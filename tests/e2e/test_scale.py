"""kubectl scale: up, down with streams running, and with the operator killed in between."""

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from enginecore_wire.outputs import FinishReason
from support.eventually import eventually
from support.faces import Face, params
from support.installation import Installation
from support.pending import PROMPT, Load, serves, tokens_for
from support.pod_processes import pod_processes
from support.space import ENGINES, Engines, Space

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("installation"),
]

STREAM_SECONDS = 5.0


@pytest.fixture
def engines(space: Space, tiny_spec: dict[str, Any]) -> Engines:
    """One engine of the torch runtime."""
    found = Engines(space, "elastic")
    found.apply(replicas=1, **tiny_spec)
    found.wait_ready(1)
    return found


def engine_series(registry: CollectorRegistry) -> set[str]:
    """Return the engines of which the client exports anything."""
    return {
        sample.labels["engine"]
        for metric in registry.collect()
        for sample in metric.samples
        if "engine" in sample.labels
    }


def test_up_and_down_by_rank(
    engines: Engines,
    make_face: Callable[..., Face],
    registry: CollectorRegistry,
    threads: ThreadPoolExecutor,
) -> None:
    face = make_face("async", engines, registry=registry)
    load = Load(face, 0, threads)
    first = engines.pod(0)["metadata"]["uid"]
    engines.scale(3)
    status = engines.wait_ready(3)
    assert {len(status["clientAddresses"][f"{way}_address"]) for way in ("input", "output")} == {3}
    for rank in (1, 2):
        eventually(lambda rank=rank: serves(face, rank), f"rank {rank} serves", 20, 0.1)
    assert engine_series(registry) == {"0", "1", "2"}

    length = tokens_for(face, 2, STREAM_SECONDS)
    stream = face.generate(PROMPT, params(length), data_parallel_rank=2)
    begin = next(stream)
    ending = threads.submit(list, stream)
    engines.scale(2)
    engines.wait_ready(2)
    assert engines.cores() == ["elastic-0", "elastic-1"], "the highest rank leaves first"
    assert serves(face, 1)
    engines.scale(1)
    status = engines.wait_ready(1)
    assert len(status["clientAddresses"]["input_address"]) == 1
    outputs = [begin, *ending.result(60)]
    assert sum(len(output.new_token_ids) for output in outputs) == length
    assert outputs[-1].finish_reason == FinishReason.LENGTH
    eventually(lambda: engine_series(registry) == {"0"}, "series of removed engines go", 20, 0.1)
    assert load.stop() > 0
    assert engines.cores() == ["elastic-0"]
    assert engines.pod(0)["metadata"]["uid"] == first
    eventually(
        lambda: len(engines.space.kubectl.find_all("pods", ENGINES)) == 1, "pods go", 60, 0.5
    )


def test_down_by_two_at_once_ends_both_engines_streams_whole(
    engines: Engines, make_face: Callable[..., Face], threads: ThreadPoolExecutor
) -> None:
    first = engines.pod(0)["metadata"]["uid"]
    engines.scale(3)
    engines.wait_ready(3)
    face = make_face("async", engines)
    for rank in (1, 2):
        eventually(lambda rank=rank: serves(face, rank), f"rank {rank} serves", 20, 0.1)
    load = Load(face, 0, threads)
    length = tokens_for(face, 1, STREAM_SECONDS)
    streams = [face.generate(PROMPT, params(length), data_parallel_rank=rank) for rank in (1, 2)]
    begins = [next(stream) for stream in streams]
    endings = [threads.submit(list, stream) for stream in streams]

    engines.scale(1)
    status = engines.wait_ready(1)
    assert len(status["clientAddresses"]["input_address"]) == 1
    assert engines.cores() == ["elastic-0"]
    for begin, ending in zip(begins, endings, strict=True):
        outputs = [begin, *ending.result(60)]
        assert sum(len(output.new_token_ids) for output in outputs) == length
        assert outputs[-1].finish_reason == FinishReason.LENGTH
    assert load.stop() > 0
    assert engines.pod(0)["metadata"]["uid"] == first


def test_operator_killed_amid_a_scale_up(engines: Engines, installation: Installation) -> None:
    first = engines.pod(0)["metadata"]["uid"]
    (pod,) = installation.pods()
    (pid,) = pod_processes(pod["metadata"]["uid"], "enginecore-operator")
    restarts = pod["status"]["containerStatuses"][0]["restartCount"]
    engines.scale(3)
    eventually(lambda: len(engines.cores()) > 1, "the scale-up begins", 20, 0.02)
    os.kill(pid, signal.SIGKILL)
    engines.wait_ready(3)
    (pod,) = installation.pods()
    assert pod["status"]["containerStatuses"][0]["restartCount"] == restarts + 1
    pods = engines.space.kubectl.find_all("pods", ENGINES)
    assert sorted(p["metadata"]["name"] for p in pods) == [f"elastic-{i}-1" for i in range(3)]
    assert engines.pod(0)["metadata"]["uid"] == first
    assert [engines.core(rank)["status"]["restarts"] for rank in range(3)] == [0] * 3
