"""How fast N engines become Ready, against a StatefulSet of N and against bare writes.

    PYTHONPATH=tests python tests/bench/operator_scale.py [COUNT…]

Each count gets a fresh cluster of simulated nodes. All three are measured in it, one after
another: the EngineCluster (its engines, Services, coordinator, addresses), a StatefulSet of the
same pods with podManagementPolicy Parallel, and a client that writes what the operator writes
for N engines (an EngineCore, a pod and two status patches each) without deciding anything. Bars:
at most 1.5 times the StatefulSet, at most 1.25 times the bare writes.
"""

import asyncio
import secrets
import sys
import tempfile
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry

from devcluster.handle import ClusterHandle, held
from devcluster.locations import Locations
from enginecore_operator.kube.client import KubeClient, load_api_client
from enginecore_operator.kube.resources import CORES, PODS
from enginecore_operator.metrics import OperatorMetrics
from enginecore_operator.plan.cores import spec_document
from enginecore_operator.plan.observed import ObjectMeta
from enginecore_operator.plan.pods import build_pod
from support.eventually import eventually, eventually_async
from support.measures import Measure
from support.operator_cluster import engine_cluster, fake_node
from support.operator_objects import RENDERING, read_core_spec
from support.operator_process import CRDS, Kubectl, OperatorRunner, grant

AT_ONCE = 16
PODS_PER_NODE = 250
DEADLINE = 600.0
POLL_SECONDS = 0.05
STATEFUL_SET_BAR = 1.5
BARE_BAR = 1.25
COUNTS = (100, 500)


def wait_ready(kubectl: Kubectl, kind: str, name: str, count: int) -> None:
    """Wait until so many replicas are Ready; one watch, no polling beside the work."""
    condition = f"--for=jsonpath={{.status.readyReplicas}}={count}"
    kubectl.run("wait", condition, f"--timeout={DEADLINE:.0f}s", f"{kind}/{name}")


def measure_operator(cluster: ClusterHandle, count: int) -> float:
    """Return the seconds from apply to Ready of an EngineCluster."""
    kubectl = namespace(cluster, "engines")
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        runner = OperatorRunner(kubectl, directory, grant(kubectl, directory))
        try:
            operator = runner.start()
            eventually(lambda: "this process leads" in operator.text, deadline=30)
            started = time.monotonic()
            kubectl.apply(engine_cluster(replicas=count))
            wait_ready(kubectl, "enginecluster", "smollm", count)
            seconds = time.monotonic() - started
            kubectl.run("delete", "enginecluster", "smollm")
            eventually(lambda: not kubectl.find_all("pods"), "gone", DEADLINE, interval=1)
        finally:
            runner.stop()
    return seconds


def measure_stateful_set(cluster: ClusterHandle, count: int) -> float:
    """Return the seconds from apply to Ready of a StatefulSet."""
    kubectl = namespace(cluster, "stateful")
    owner = ObjectMeta(name="peer", namespace=kubectl.namespace, uid="none")
    engine = build_pod(owner, read_core_spec(accelerator={"count": 0}), 1, "peer", RENDERING)
    pod = {**engine["spec"], "restartPolicy": "Always"}
    del pod["hostname"]
    spec = {
        "replicas": count,
        "serviceName": "peer",
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": {"app": "peer"}},
        "template": {"metadata": {"labels": {"app": "peer"}}, "spec": pod},
    }
    meta = {"name": "peer"}
    started = time.monotonic()
    kubectl.apply({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": meta, "spec": spec})
    wait_ready(kubectl, "statefulset", "peer", count)
    seconds = time.monotonic() - started
    kubectl.run("delete", "statefulset,service", "peer", "--ignore-not-found")
    eventually(lambda: not kubectl.find_all("pods"), "gone", DEADLINE, interval=1)
    return seconds


async def bare_writes(cluster: ClusterHandle, name: str, count: int) -> None:
    """Write, for each engine, what the operator writes; return when its pods are Ready."""
    api = await load_api_client(str(cluster.kubeconfig), connections=4 * AT_ONCE)
    client = KubeClient(api, observer=OperatorMetrics(CollectorRegistry()), may_write=lambda: True)
    slots = asyncio.Semaphore(AT_ONCE)
    document = spec_document(read_core_spec(accelerator={"count": 0}))

    async def bounded(work: Awaitable[Any]) -> None:
        async with slots:
            await work

    async def one(rank: int) -> None:
        meta = {"name": f"bare-{rank}", "namespace": name}
        manifest = {
            "apiVersion": CORES.api_version,
            "kind": CORES.kind,
            "metadata": meta,
            "spec": {**document, "rank": rank},
        }
        raw = await client.create(CORES, manifest)
        owner = msgspec.convert(raw["metadata"], ObjectMeta)
        spec = read_core_spec(accelerator={"count": 0}, rank=rank)
        await client.create(PODS, build_pod(owner, spec, 1, "bare", RENDERING))
        for phase in ("Pending", "Ready"):
            patch = {"status": {"phase": phase, "epoch": 1}}
            await client.patch(CORES, name, meta["name"], patch, "status")

    await asyncio.gather(*(bounded(one(rank)) for rank in range(count)))

    async def ready() -> bool:
        return all(map(is_ready, (await client.list_all(PODS, name)).items))

    done: bool = await eventually_async(ready, "every pod is Ready", DEADLINE, POLL_SECONDS)
    assert done
    await client.close()


def is_ready(pod: dict[str, Any]) -> bool:
    """Say whether a pod is Ready."""
    conditions = pod.get("status", {}).get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def measure_bare(cluster: ClusterHandle, count: int) -> float:
    """Return the seconds of the bare writes, until their pods are Ready."""
    kubectl = namespace(cluster, "bare")
    started = time.monotonic()
    asyncio.run(bare_writes(cluster, kubectl.namespace, count))
    return time.monotonic() - started


def namespace(cluster: ClusterHandle, name: str) -> Kubectl:
    """Create a namespace."""
    cluster.kubectl("create", "namespace", name)
    return Kubectl(cluster, name)


def measure(count: int) -> None:
    """Measure one count in a cluster of its own."""
    name = f"scale-{secrets.token_hex(3)}"
    locations = Locations.from_environment()
    with held(name, ["--tier", "api", "--kwok"], locations) as cluster:
        cluster.kubectl("apply", "-f", str(CRDS))
        cluster.kubectl("wait", "--for=condition=Established", "--timeout=30s", "-f", str(CRDS))
        nodes = [fake_node(f"fake-{i}") for i in range(-(-(count + 1) // PODS_PER_NODE) + 1)]
        Kubectl(cluster, "default").apply(*nodes)
        engines = measure_operator(cluster, count)
        stateful_set = measure_stateful_set(cluster, count)
        bare = measure_bare(cluster, count)
    Measure(f"{count} engines Ready", engines, "s").print()
    Measure(f"{count} engines / StatefulSet", engines / stateful_set, "x", STATEFUL_SET_BAR).print()
    Measure(f"{count} engines / bare writes", engines / bare, "x", BARE_BAR).print()


if __name__ == "__main__":
    for number in [int(text) for text in sys.argv[1:]] or COUNTS:
        measure(number)
