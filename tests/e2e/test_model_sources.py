"""A hostPath without a model: who finds out says so, and nothing is made on the node."""

from pathlib import Path
from typing import Any

import pytest

from support.eventually import eventually
from support.space import Engines, Space

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("installation"),
]

WAIT = 120.0
ONCE = {"limit": 1}


def from_path(tiny_spec: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the spec with a model that is read from this path of the node."""
    model = {"name": "nothing", "source": {"hostPath": str(path)}}
    return tiny_spec | {"model": model, "restart": ONCE}


def degraded(space: Space, name: str) -> tuple[str, str]:
    """Return reason and message of the cluster's Degraded while it is True."""
    conditions = (space.get("engineclusters", name) or {}).get("status", {}).get("conditions", [])
    for condition in conditions:
        if condition["type"] == "Degraded" and condition["status"] == "True":
            return condition["reason"], condition["message"]
    return "", ""


def test_a_path_that_is_not_there_is_told_by_the_kubelet(
    space: Space, tiny_spec: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "no" / "such"
    engines = Engines(space, "nopath")
    engines.apply(replicas=1, **from_path(tiny_spec, path))
    words = f"{path} is not a directory"
    eventually(
        lambda: words in degraded(space, "nopath")[1], "the cluster names the path", WAIT, 0.5
    )
    reason, message = degraded(space, "nopath")
    assert reason == "EngineStuck"
    assert message.startswith("nopath-0: CannotStart: FailedMount: ")
    warnings = [e for e in space.events("nopath") if e["reason"] == "EngineStuck"]
    assert [event["type"] for event in warnings] == ["Warning"]
    assert not path.parent.exists()


def test_a_directory_without_a_model_is_named_by_the_server(
    space: Space, tiny_spec: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "empty"
    path.mkdir()
    engines = Engines(space, "nofiles")
    engines.apply(replicas=1, **from_path(tiny_spec, path))
    eventually(
        lambda: degraded(space, "nofiles")[0] == "EngineFailed", "the engine is given up", WAIT, 0.5
    )
    message = degraded(space, "nofiles")[1]
    assert "there is no model in /models/empty, where spec.model.source is mounted" in message
    assert "vocab" not in message
    failure = engines.core(0)["status"]["failure"]
    assert (failure["epoch"], failure["count"]) == (1, 1)
    assert "spec.model.source" in failure["message"]
    # The failed pod stays for kubectl logs.
    log = space.kubectl.run("logs", "nofiles-0-1")
    assert "there is no model in /models/empty" in log


def test_coordinators_are_not_killed_while_they_start(
    space: Space, tiny_spec: dict[str, Any]
) -> None:
    engines = Engines(space, "calm")
    engines.apply(replicas=0, **tiny_spec)

    def coordinator() -> dict[str, Any] | None:
        for pod in space.find_all("pods"):
            if pod["metadata"]["name"].startswith("calm-coordinator-"):
                states = pod["status"].get("containerStatuses", [])
                return pod if states and states[0]["ready"] else None
        return None

    pod = eventually(coordinator, "the coordinator is ready", WAIT, 0.5)
    assert pod is not None
    assert pod["status"]["qosClass"] == "Burstable"
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 0
