"""Engines for clients outside the cluster, and engines on their node's own network (C7)."""

import json
import socket
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from devcluster.ports import free_ports
from enginecore_client import ClusterSource
from enginecore_wire.outputs import FinishReason
from support.eventually import eventually
from support.faces import Face, params
from support.pending import PROMPT, serves, tokens_for
from support.space import Engines, Space

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("installation"),
]

DRAIN_SECONDS = 10.0
STREAM_TOKENS = 12000
PATIENT_RESTART = {"initialSeconds": 0.5, "maxSeconds": 2, "limit": 1000}


@pytest.fixture
def outside() -> Iterator[Callable[[Engines], ClusterSource]]:
    """Return a function that follows the addresses for clients outside the cluster."""
    clients: list[Any] = []

    def follow(engines: Engines) -> ClusterSource:
        clients.append(engines.space.api_client())
        return ClusterSource(engines.name, engines.space.name, clients[-1], exposed=True)

    yield follow
    for client in clients:
        client.rest_client.pool_manager.clear()


def node_address(space: Space) -> str:
    """Return the InternalIP of the cluster's node."""
    (node,) = json.loads(space.kubectl.run("get", "nodes", "-o", "json"))["items"]
    found: str = next(
        entry["address"] for entry in node["status"]["addresses"] if entry["type"] == "InternalIP"
    )
    return found


def hosts_of(addresses: dict[str, Any]) -> set[str]:
    found = [*addresses["input_address"], *addresses["output_address"]]
    return {address.removeprefix("tcp://").rpartition(":")[0] for address in found}


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_client_outside_streams_by_the_node_s_port(
    kind: str,
    space: Space,
    tiny_spec: dict[str, Any],
    make_face: Callable[..., Face],
    outside: Callable[[Engines], ClusterSource],
    threads: ThreadPoolExecutor,
    tmp_path: Path,
) -> None:
    engines = Engines(space, "open")
    engines.apply(replicas=1, **tiny_spec, transport={"expose": "NodePort"})
    engines.wait_ready(1)
    node = node_address(space)

    def published() -> dict[str, Any] | None:
        addresses = engines.status().get("exposedAddresses") or {}
        return addresses if all(addresses.get("input_address", [""])) else None

    addresses = eventually(published, "the addresses outside", 20, 0.1)
    assert addresses is not None
    assert hosts_of(addresses) == {node}
    assert hosts_of(engines.status()["clientAddresses"]) == {engines.pod(0)["status"]["podIP"]}
    face = make_face(kind, outside(engines), **engines.key_options(tmp_path))
    length = min(tokens_for(face, 0, DRAIN_SECONDS), STREAM_TOKENS)

    # A pod that drains keeps the connections it has; new ones lead to its replacement.
    stream = face.generate(PROMPT, params(length), data_parallel_rank=0)
    first = next(stream)
    ending = threads.submit(list, stream)
    old = engines.pod(0)["metadata"]["name"]
    space.kubectl.run("delete", "pod", old, "--wait=false")
    engines.wait_epoch(0, 2)
    assert published() == addresses
    eventually(lambda: serves(face, 0), "the replacement serves", 30, 0.1)
    outputs = [first, *ending.result(60)]
    assert sum(len(output.new_token_ids) for output in outputs) == length
    assert outputs[-1].finish_reason == FinishReason.LENGTH

    engines.apply(replicas=1, **tiny_spec)
    eventually(lambda: "exposedAddresses" not in engines.status(), "no address outside", 20, 0.1)
    name = f"{engines.name}-0-exposed"
    gone = ("get", "service", name, "--ignore-not-found")
    eventually(lambda: not space.kubectl.run(*gone), "the Service is gone", 20, 0.2)
    assert engines.epoch(0) == 2
    assert serves(make_face(kind, engines), 0)


def test_on_the_node_s_network_a_taken_port_is_told_and_left(
    space: Space, tiny_spec: dict[str, Any], make_face: Callable[..., Face]
) -> None:
    engines = Engines(space, "host")
    output_port, http_port = free_ports(2, "0.0.0.0")
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        input_port = taken.getsockname()[1]
        ports = {"inputPort": input_port, "outputPort": output_port, "httpPort": http_port}
        spec = tiny_spec | {
            "transport": ports,
            "podTemplate": {"spec": {"hostNetwork": True}},
            "restart": PATIENT_RESTART,
        }
        engines.apply(replicas=1, **spec)

        def failure() -> dict[str, Any] | None:
            if not engines.cores():
                return None
            found: dict[str, Any] | None = engines.core(0).get("status", {}).get("failure")
            return found

        failed = eventually(failure, "the start fails", 60, 0.2)
        assert failed is not None
        words = f"transport.input_port: port {input_port} on * is in use; give another port"
        assert words in failed["message"]
        notes = [e["note"] for e in space.events("host-0") if e["reason"] == "PodFailed"]
        assert words in notes[0]

        def degraded() -> bool:
            found = space.get("engineclusters", "host") or {}
            conditions = found.get("status", {}).get("conditions", [])
            said = {c["type"]: c for c in conditions}.get("Degraded", {})
            return said.get("reason") == "EngineFailed" and words in said["message"]

        eventually(degraded, "the cluster says so", 20, 0.1)

    engines.wait_ready(1)
    node = node_address(space)
    status = engines.status()
    assert status["clientAddresses"]["input_address"] == [f"tcp://{node}:{input_port}"]
    assert serves(make_face("sync", engines), 0)

    # Engines find the coordinator by name, which the node's own resolver does not know.
    coordinator = status["clientAddresses"]["stats_update_address"]
    host = coordinator.removeprefix("tcp://").rpartition(":")[0]

    def reported() -> bool:
        with urllib.request.urlopen(f"http://{host}:8080/status", timeout=5) as answer:
            return [row["rank"] for row in json.loads(answer.read())["ranks"]] == [0]

    eventually(reported, "the engine's load is reported", 30, 0.3)

    engines.scale(2)

    def waits() -> bool:
        if len(engines.cores()) < 2:
            return False
        conditions = engines.core(1).get("status", {}).get("conditions", [])
        said = {c["type"]: c for c in conditions}.get("Ready", {})
        return said.get("reason") == "Unschedulable" and "spec.transport" in said["message"]

    eventually(waits, "a second engine has no room on the node", 60, 0.2)
