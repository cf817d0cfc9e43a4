"""Pods that fail or do not start: what is known of them reaches engine and cluster."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from support.eventually import eventually
from support.operator_cluster import engine_cluster
from support.operator_process import Kubectl, OperatorRunner, fail_pod

pytestmark = [pytest.mark.api, pytest.mark.timeout(180)]

WAIT = 40.0
MOUNT_ERROR = "MountVolume.SetUp failed: hostPath type check failed: /no/such is not a directory"


@pytest.fixture
def silent_node(kubectl: Kubectl) -> Iterator[str]:
    """A node on which no kubelet works, simulated or not."""
    name = f"silent-{kubectl.namespace}"
    meta = {"name": name, "labels": {"silent": kubectl.namespace}}
    capacity = {"cpu": "8", "memory": "8Gi", "pods": "10"}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": meta}
    kubectl.apply(node)
    kubectl.patch(
        "node", name, {"status": {"capacity": capacity, "allocatable": capacity}}, "status"
    )
    yield name
    kubectl.run("delete", "node", name)


def message(kubectl: Kubectl, kind: str, name: str, condition: str) -> str:
    conditions = kubectl.get(kind, name)["status"]["conditions"]
    found: str = next(c["message"] for c in conditions if c["type"] == condition)
    return found


def wait_degraded(kubectl: Kubectl, words: str) -> None:
    eventually(
        lambda: (
            kubectl.condition("enginecluster", "smollm", "Degraded") == ("True", "EngineStuck")
            and words in message(kubectl, "enginecluster", "smollm", "Degraded")
        ),
        f"the cluster says {words}",
        WAIT,
        0.2,
    )
    eventually(lambda: any(words in note for note in kubectl.events("EngineStuck")), "an Event")


def test_unschedulable_engine_degrades_the_cluster(
    kubectl: Kubectl, runner: OperatorRunner
) -> None:
    runner.start()
    nowhere = {"spec": {"nodeSelector": {"on": "the-moon"}}}
    kubectl.apply(engine_cluster(replicas=1, podTemplate=nowhere))
    wait_degraded(kubectl, "smollm-0: Unschedulable")
    assert kubectl.condition("enginecore", "smollm-0", "Ready") == ("False", "Unschedulable")
    assert kubectl.condition("enginecore", "smollm-0", "Scheduled") == ("False", "Unschedulable")


def test_what_only_an_event_tells_reaches_the_conditions(
    kubectl: Kubectl, runner: OperatorRunner, silent_node: str
) -> None:
    operator = runner.start()
    template: dict[str, Any] = {
        "nodeSelector": {"silent": kubectl.namespace},
        "tolerations": [{"operator": "Exists"}],
    }
    kubectl.apply(engine_cluster(replicas=1, podTemplate={"spec": template}))

    def bound() -> dict[str, Any] | None:
        found = kubectl.find_all("pods", "enginecore.dev/core=smollm-0")
        return found[0] if found and found[0]["spec"].get("nodeName") == silent_node else None

    pod = eventually(bound, "the pod is bound", WAIT)
    assert pod is not None
    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
    start = (datetime.now(UTC) - timedelta(seconds=20)).strftime("%Y-%m-%dT%H:%M:%SZ")
    about = {"kind": "Pod", "namespace": kubectl.namespace, "name": name, "uid": uid}
    kubectl.apply(
        {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{name}.mount"},
            "involvedObject": about,
            "type": "Warning",
            "reason": "FailedMount",
            "message": MOUNT_ERROR,
            "lastTimestamp": start,
        }
    )
    kubectl.patch("pod", name, {"status": {"phase": "Pending", "startTime": start}}, "status")
    wait_degraded(kubectl, MOUNT_ERROR)
    assert kubectl.condition("enginecore", "smollm-0", "Ready") == ("False", "CannotStart")
    assert message(kubectl, "enginecore", "smollm-0", "Ready") == f"FailedMount: {MOUNT_ERROR}"
    assert "not read" not in operator.text


def test_a_failed_engine_degrades_the_cluster_until_it_is_back(
    kubectl: Kubectl, runner: OperatorRunner
) -> None:
    runner.start()
    kubectl.apply(engine_cluster(replicas=2, restart={"initialSeconds": 3}))

    def available() -> tuple[str, str]:
        return kubectl.condition("enginecluster", "smollm", "Available")

    eventually(lambda: available() == ("True", "AllReplicasReady"), "both are ready", WAIT, 0.2)
    fail_pod(kubectl, "smollm-1-1", "out of luck")
    eventually(
        lambda: (
            kubectl.condition("enginecluster", "smollm", "Degraded") == ("True", "EngineFailed")
        ),
        "the cluster is degraded",
        WAIT,
        0.2,
    )
    words = message(kubectl, "enginecluster", "smollm", "Degraded")
    assert words.startswith("smollm-1: ")
    assert words.endswith("out of luck")
    assert available() == ("True", "EnoughReplicasReady")
    eventually(
        lambda: kubectl.condition("enginecluster", "smollm", "Degraded")[0] == "False",
        "all is well again",
        WAIT,
        0.2,
    )
    assert available() == ("True", "AllReplicasReady")
    assert len(kubectl.events("EngineFailed")) == 1
