"""A cluster of a release that knew no CURVE, once this one reads it: engine by engine."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from enginecore_operator.api import labels
from enginecore_operator.api.conditions import ConditionType, is_true
from enginecore_operator.api.status import EngineCoreStatus
from enginecore_operator.plan.actions import Create, Delete
from enginecore_operator.plan.core_plan import plan_core
from enginecore_operator.plan.observed import CoreView, ObservedPod
from support.cluster_story import ClusterStory
from support.key_chest import SECURED
from support.operator_objects import RENDERING, actions_of, at, failed, node, pod_from, running

REPLICAS = 3
PLAIN = {"transport": {"security": "None"}}
STORED: dict[str, dict[str, Any]] = {"with the default": SECURED, "without the field": {}}
"""How what was stored before there was the field may be read."""


class Upgrade:
    """A cluster and its engines, told pass by pass; pods run once they are let."""

    def __init__(self, stored: Mapping[str, Any], **spec: Any) -> None:
        self.story = ClusterStory(replicas=REPLICAS, **PLAIN)
        self.pods: dict[str, list[ObservedPod]] = {}
        self.clock = 0.0
        self.until_settled()
        self.old = {pod.metadata.name for pod in self.newest()}
        # From here on another operator looks at what is there.
        self.story.change_spec(replicas=REPLICAS, **{**SECURED, **spec})
        for name, core in self.story.cores.items():
            transport = {k: v for k, v in core.spec["transport"].items() if k != "security"}
            found = {**core.spec, "transport": {**transport, **stored.get("transport", {})}}
            assert found["coordinatorAddress"], "engines of a cluster report their load"
            self.story.cores[name] = msgspec.structs.replace(core, spec=found)

    def newest(self) -> list[ObservedPod]:
        return [pods[-1] for pods in self.pods.values()]

    def look(self) -> None:
        """Make one pass over the cluster and, before and after it, over each engine."""
        self.clock += 1
        self.engines()
        self.story.plan(self.clock)
        self.engines()

    def engines(self) -> None:
        for name, core in self.story.cores.items():
            pods = self.pods.setdefault(name, [])
            plan = plan_core(
                CoreView(core=core, pods=pods, nodes=node()), RENDERING, at(self.clock)
            )
            assert isinstance(plan.status, EngineCoreStatus)
            self.story.cores[name] = msgspec.structs.replace(core, status=plan.status)
            for action in actions_of(plan):
                if isinstance(action, Create) and action.manifest["kind"] == "Pod":
                    pods.append(pod_from(action.manifest))
                elif isinstance(action, Delete):
                    pods[:] = [pod for pod in pods if pod.metadata.name != action.ref.name]

    def unready(self) -> list[str]:
        return [
            name
            for name, core in self.story.cores.items()
            if not is_true(core.status.conditions, ConditionType.READY)
        ]

    def start(self) -> None:
        """Let all pods run that were made."""
        for pods in self.pods.values():
            pods[:] = [pod if pod.ended else running(pod) for pod in pods]

    def until_settled(self) -> None:
        for _ in range(4 * REPLICAS):
            self.look()
            self.start()


def has_keys(upgrade: Upgrade) -> dict[str, bool]:
    return {
        pods[-1].metadata.name: labels.SERVER_KEY in pods[-1].metadata.annotations
        for pods in upgrade.pods.values()
    }


@pytest.mark.parametrize("stored", STORED.values(), ids=STORED)
def test_one_engine_at_a_time_gets_keys(stored: Mapping[str, Any]) -> None:
    upgrade = Upgrade(stored)
    seen = [has_keys(upgrade)]
    for _ in range(4 * REPLICAS):
        upgrade.look()
        assert len(upgrade.unready()) <= 1
        if has_keys(upgrade) != seen[-1]:
            seen.append(has_keys(upgrade))
        upgrade.start()
    assert [sum(step.values()) for step in seen] == [0, 1, 2, 3]
    assert list(seen[1]) == ["smollm-0-1", "smollm-1-1", "smollm-2-2"], "the highest rank first"
    assert upgrade.story.condition("Progressing") == ("False", "Settled")
    assert upgrade.story.condition("Degraded") == ("False", "AsExpected")


@pytest.mark.parametrize("stored", STORED.values(), ids=STORED)
def test_engines_whose_turn_has_not_come_say_what_they_are(stored: Mapping[str, Any]) -> None:
    upgrade = Upgrade(stored, rollout={"paused": True})
    upgrade.until_settled()
    assert {pod.metadata.name for pod in upgrade.newest()} == upgrade.old
    for core in upgrade.story.cores.values():
        assert core.spec["transport"]["security"] == "None"
    assert upgrade.unready() == []
    assert upgrade.story.condition("Progressing") == ("False", "Paused")


@pytest.mark.parametrize("stored", STORED.values(), ids=STORED)
def test_one_that_dies_meanwhile_starts_again_as_it_was(stored: Mapping[str, Any]) -> None:
    upgrade = Upgrade(stored, rollout={"paused": True})
    upgrade.look()
    upgrade.pods["smollm-1"] = [failed(upgrade.pods["smollm-1"][-1])]
    upgrade.look()
    upgrade.clock += 60
    upgrade.until_settled()
    assert has_keys(upgrade) == {"smollm-0-1": False, "smollm-1-2": False, "smollm-2-1": False}
    assert upgrade.unready() == []
