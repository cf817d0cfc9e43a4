"""Three independent engines: what a client is told of them, and one of them lost (C1, C4)."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from support.eventually import eventually
from support.faces import Face, params
from support.installation import Installation
from support.pending import PROMPT, Load, serves
from support.pod_processes import engine_pod_processes
from support.protocol_peer import ProtocolPeer
from support.space import Engines, temporary_space

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("installation"),
]

RANKS = (0, 1, 2)
VICTIM = 1
STREAM_TOKENS = 6000


@pytest.fixture(scope="module")
def trio(installation: Installation, tiny_spec: dict[str, Any]) -> Iterator[Engines]:
    with temporary_space(installation.cluster) as space:
        engines = Engines(space, "trio")
        engines.apply(replicas=len(RANKS), **tiny_spec)
        engines.wait_ready(len(RANKS))
        yield engines


def condition(tree: dict[str, Any], kind: str) -> str:
    """Return the status of a condition: True, False or Unknown."""
    found = {c["type"]: c["status"] for c in tree["status"]["conditions"]}
    return str(found[kind])


def health(engines: Engines) -> tuple[str, ...]:
    """Return whether the EngineCluster is not Degraded, and Ready of each EngineCore."""
    sound = {"True": "False", "False": "True"}[of_cluster(engines, "Degraded")]
    return sound, *(condition(engines.core(rank), "Ready") for rank in RANKS)


def of_cluster(engines: Engines, kind: str) -> str:
    """Return the status of a condition of the EngineCluster."""
    cluster = engines.space.get("engineclusters", engines.name)
    assert cluster is not None
    return condition(cluster, kind)


def value(registry: CollectorRegistry, name: str, rank: int) -> float:
    """Return the sum of a metric's samples of an engine."""
    return sum(
        sample.value
        for metric in registry.collect()
        for sample in metric.samples
        if sample.name == name and sample.labels.get("engine") == str(rank)
    )


def test_the_coordinators_publish_reaches_a_client(
    trio: Engines,
    make_face: Callable[..., Face],
    registry: CollectorRegistry,
    threads: ThreadPoolExecutor,
    tmp_path: Path,
) -> None:
    """A peer that tells no load of its own stands for the engine: the coordinator's is shown."""
    found = trio.wait_ready(len(RANKS))["clientAddresses"]
    stats = {key: found[key] for key in ("stats_update_address", "stats_server_key")}
    face = make_face("async", trio)
    for rank in RANKS:
        eventually(lambda rank=rank: serves(face, rank), f"rank {rank} serves", 20, 0.1)
    with ProtocolPeer(VICTIM) as peer:
        own_key = trio.key_options(tmp_path)
        make_face("sync", peer.addresses | stats, registry=registry, **own_key)

        def shown(name: str) -> float:
            return value(registry, f"vllm:{name}", VICTIM)

        streams = [
            face.generate(PROMPT, params(STREAM_TOKENS), data_parallel_rank=VICTIM)
            for _ in range(2)
        ]
        endings = [threads.submit(list, stream) for stream in streams]
        eventually(lambda: shown("num_requests_running") == 2.0, "the engine's load", 20)
        eventually(lambda: shown("kv_cache_usage_perc") > 0, "the engine's KV cache", 20)
        for ending in endings:
            ending.result(60)
        eventually(lambda: shown("num_requests_running") == 0.0, "the idle engine", 20)


def test_one_of_three_is_lost_and_comes_back(
    trio: Engines,
    make_face: Callable[..., Face],
    registry: CollectorRegistry,
    threads: ThreadPoolExecutor,
    record_property: Callable[[str, object], None],
) -> None:
    trio.wait_ready(len(RANKS))
    eventually(lambda: set(health(trio)) == {"True"}, "all is well", 20, 0.1)
    before = trio.core(VICTIM)["status"]
    survivors = [rank for rank in RANKS if rank != VICTIM]
    uids = [trio.pod(rank)["metadata"]["uid"] for rank in survivors]
    face = make_face("async", trio, registry=registry)
    for rank in RANKS:
        eventually(lambda rank=rank: serves(face, rank), f"rank {rank} serves", 20, 0.1)
    loads = [Load(face, rank, threads) for rank in survivors for _ in range(2)]
    eventually(lambda: all(load.served for load in loads), "requests of the other engines", 20)

    killed = time.monotonic()
    os.kill(engine_pod_processes(trio.pod(VICTIM)["metadata"]["uid"])["engine"], signal.SIGKILL)
    bad = ("False", *("False" if rank == VICTIM else "True" for rank in RANKS))
    eventually(lambda: health(trio) == bad, "health turns bad", 10, 0.05)
    # One engine may be missing (rollout.maxUnavailable): the others serve.
    assert of_cluster(trio, "Available") == "True"
    record_property("bad_seconds", round(time.monotonic() - killed, 2))
    trio.wait_epoch(VICTIM, before["epoch"] + 1)
    eventually(lambda: set(health(trio)) == {"True"}, "health turns good", 20, 0.1)

    def routed() -> bool:
        """Send a request to any engine; say whether the replacement has served one."""
        assert sum(len(o.new_token_ids) for o in face.generate(PROMPT, params(4))) == 4
        return value(registry, "enginecore_client_requests_total", VICTIM) > served

    # Nothing was pinned to the lost rank since it died: only routing gives it work.
    served = value(registry, "enginecore_client_requests_total", VICTIM)
    eventually(routed, "the replacement gets load", 20)
    record_property("load_again_seconds", round(time.monotonic() - killed, 1))
    assert all(load.stop() > 0 for load in loads), "the other engines lose no request"
    assert [trio.pod(rank)["metadata"]["uid"] for rank in survivors] == uids
    assert trio.core(VICTIM)["status"]["restarts"] == before["restarts"] + 1
