"""Pods that a real kubelet or the Eviction API puts out are replaced."""

import json
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest

from support.eventually import eventually
from support.faces import Face
from support.installation import Installation
from support.pending import serves
from support.space import Engines, temporary_space

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("installation"),
]

BACK_OFF_SECONDS = 3
SCRATCH = "scratch"
OVERFLOW = f"open('/{SCRATCH}/fill', 'wb').write(bytes(8 << 20))"
EARLIEST = 0.75
"""The pause runs from the failure itself, and its Event is written a little later."""

KUBELET_SECONDS = 240.0
"""The kubelet measures volumes once a minute or so, and looks at that every ten seconds."""


@pytest.fixture(scope="module")
def engines(installation: Installation, tiny_spec: dict[str, Any]) -> Iterator[Engines]:
    """Two engines with a volume of one mebibyte."""
    mount = {"name": SCRATCH, "mountPath": f"/{SCRATCH}"}
    template = {
        "volumes": [{"name": SCRATCH, "emptyDir": {"sizeLimit": "1Mi"}}],
        "containers": [{"name": "engine", "volumeMounts": [mount]}],
    }
    restart = {"initialSeconds": BACK_OFF_SECONDS, "maxSeconds": 60}
    with temporary_space(installation.cluster) as space:
        found = Engines(space, "evicted")
        changes = {"restart": restart, "podTemplate": {"spec": template}}
        found.apply(replicas=2, **(tiny_spec | changes))
        found.wait_ready(2)
        yield found


def told(engines: Engines, rank: int) -> dict[str, dict[str, Any]]:
    """Return the operator's latest Event of each reason about the engine of a rank."""
    return {event["reason"]: event for event in engines.space.events(f"{engines.name}-{rank}")}


def at(event: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(event["eventTime"])


def ready_condition(engines: Engines, rank: int) -> tuple[str, str, str]:
    """Return status, reason and message of the engine's condition Ready."""
    conditions = engines.core(rank)["status"]["conditions"]
    found = next(c for c in conditions if c["type"] == "Ready")
    return found["status"], found["reason"], found["message"]


def test_pod_that_the_kubelet_evicts_is_replaced_after_the_back_off(
    engines: Engines, make_face: Callable[..., Face]
) -> None:
    face = make_face("async", engines)
    old = engines.pod(1)["metadata"]["name"]
    engines.space.kubectl.run("exec", old, "--", "python", "-c", OVERFLOW)

    def evicted() -> dict[str, Any] | None:
        pod = engines.space.get("pods", old)
        return pod if pod and pod["status"]["phase"] in ("Failed", "Succeeded") else None

    pod = eventually(evicted, "the kubelet evicts the pod", KUBELET_SECONDS, 0.1)
    assert pod is not None
    assert any(
        event["reason"] == "Evicted" and SCRATCH in event["note"]
        for event in engines.space.events(old)
    )
    # The kubelet's verdict, unless the server's end in order was quicker: then the pod succeeded.
    verdict = pod["status"].get("reason", "Completed")
    why = pod["status"].get("message", "engine exited 0")
    assert verdict == "Completed" or (verdict == "Evicted" and SCRATCH in why)
    eventually(lambda: ready_condition(engines, 1)[1] == "BackOff", "the engine waits", 20, 0.1)
    status, _, message = ready_condition(engines, 1)
    assert status == "False"
    assert f"{verdict}: {why}" in message
    assert engines.core(1)["status"]["phase"] == "BackOff"

    fresh = engines.wait_epoch(1, 2)
    assert fresh["restarts"] == 1
    assert fresh["failure"]["reason"] == verdict
    events = told(engines, 1)
    assert f"Pod {old} failed ({verdict}), 1 in a row" in events["PodFailed"]["note"]
    assert events["PodFailed"]["type"] == "Warning"
    assert f"Replaced pod {old} by {old[:-1]}2" in events["Replaced"]["note"]
    pause = (at(events["Replaced"]) - at(events["PodFailed"])).total_seconds()
    assert pause >= BACK_OFF_SECONDS * EARLIEST
    eventually(lambda: engines.space.get("pods", old) is None, "the evicted pod goes", 30, 0.2)
    engines.wait_ready(2)
    eventually(lambda: serves(face, 1), "the same client uses the replacement", 20, 0.1)


def test_pod_evicted_by_the_eviction_api_is_replaced_at_once(
    engines: Engines, make_face: Callable[..., Face]
) -> None:
    engines.wait_ready(2)
    face = make_face("async", engines)
    pod = engines.pod(0)["metadata"]
    path = f"/api/v1/namespaces/{engines.space.name}/pods/{pod['name']}/eviction"
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod["name"]}}
    engines.space.kubectl.run("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))

    fresh = engines.wait_epoch(0, 2)
    assert fresh["restarts"] == 1
    assert "failure" not in fresh, "somebody's wish is no failure of the engine"
    events = told(engines, 0)
    assert "PodFailed" not in events
    note = f"Replaced pod {pod['name']} by {pod['name'][:-1]}2: the pod is being deleted"
    assert events["Replaced"]["note"] == note
    assert ready_condition(engines, 0)[:2] == ("True", "PodReady")
    engines.wait_ready(2)
    eventually(lambda: serves(face, 0), "the same client uses the replacement", 20, 0.1)
