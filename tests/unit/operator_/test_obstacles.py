"""What keeps a pod from starting reaches the conditions of its engine."""

from typing import Any

import pytest

from enginecore_operator.pod_warnings import newest_warnings
from support.operator_objects import CoreStory, at, deleted, on_node, running, with_status

START = at(0).strftime("%Y-%m-%dT%H:%M:%SZ")


def waiting(reason: str, message: str = "") -> list[dict[str, Any]]:
    return [{"name": "engine", "state": {"waiting": {"reason": reason, "message": message}}}]


def refused(message: str, reason: str = "Unschedulable") -> list[dict[str, Any]]:
    return [{"type": "PodScheduled", "status": "False", "reason": reason, "message": message}]


def story_of(pod: dict[str, Any], *, bound: bool = True, **spec: Any) -> CoreStory:
    story = CoreStory(**spec)
    story.plan()
    placed = on_node(story.pod) if bound else story.pod
    story.pod = with_status(placed, phase="Pending", **pod)
    return story


def ready(story: CoreStory) -> tuple[str, str]:
    found = next(c for c in story.status.conditions if c.type == "Ready")
    return found.reason, found.message


def test_an_engine_waits_for_its_earlier_pod_to_make_room() -> None:
    story = CoreStory()
    story.plan()
    story.pod = running(story.pod)
    story.plan(1)
    story.change_spec(runtime={"args": ["--x"]})
    story.plan(2)
    story.pods[0] = deleted(story.pods[0])
    words = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    story.pod = with_status(story.pod, phase="Pending", conditions=refused(words))
    story.plan(3)
    assert ready(story) == ("PodPending", "waits for pod smollm-0-1 to end")
    assert story.condition("Scheduled") == ("False", "NotScheduledYet")
    del story.pods[0]
    story.plan(4)
    assert ready(story)[0] == "Unschedulable"
    assert story.condition("Scheduled") == ("False", "Unschedulable")


@pytest.mark.parametrize(
    ("pod", "reason", "message"),
    [
        (
            {"containerStatuses": waiting("ErrImagePull", "no such image")},
            "CannotStart",
            "container engine: ErrImagePull: no such image",
        ),
        (
            {"initContainerStatuses": [
                {"name": "fetch", "state": {"waiting": {"reason": "ImagePullBackOff"}}}],
             "containerStatuses": waiting("PodInitializing")},
            "CannotStart",
            "container fetch: ImagePullBackOff",
        ),
        (
            {"containerStatuses": waiting("ContainerCreating")},
            "PodPending",
            "container engine: ContainerCreating",
        ),
        ({}, "PodPending", "the pod is not running yet"),
    ],
    ids=["no image", "no image of an init container", "on its way", "not seen yet"],
)  # fmt: skip
def test_what_the_kubelet_says(pod: dict[str, Any], reason: str, message: str) -> None:
    story = story_of(pod)
    story.plan(1)
    assert ready(story) == (reason, message)


@pytest.mark.parametrize(
    ("accelerator", "remedy"),
    [({}, True), ({"count": 0}, False), ({"name": "amd.com/gpu"}, False)],
    ids=["asks for it", "asks for none", "asks for another"],
)
def test_unschedulable_tells_the_way_without_a_device(
    accelerator: dict[str, Any], remedy: bool
) -> None:
    words = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    story = story_of({"conditions": refused(words)}, bound=False, accelerator=accelerator)
    story.plan(1)
    reason, message = ready(story)
    assert reason == "Unschedulable"
    assert message.startswith(words)
    assert ("spec.accelerator.count: 0" in message) == remedy
    assert story.condition("Scheduled") == ("False", "Unschedulable")


def test_ports_taken_on_the_node_s_network_are_told_with_the_fields() -> None:
    words = "0/2 nodes are available: 2 node(s) didn't have free ports for the requested pod ports."
    story = story_of(
        {"conditions": refused(words)},
        bound=False,
        podTemplate={"spec": {"hostNetwork": True}},
        transport={"inputPort": 7001},
    )
    story.plan(1)
    reason, message = ready(story)
    assert reason == "Unschedulable"
    assert message.startswith(words)
    assert "spec.transport.inputPort" in message
    assert "a node each" in message


@pytest.mark.parametrize("conditions", [[], refused("gate", "SchedulingGated")])
def test_what_the_scheduler_has_not_refused_is_pending(conditions: list[dict[str, Any]]) -> None:
    story = story_of({"conditions": conditions}, bound=False)
    story.plan(1)
    assert ready(story)[0] == "PodPending"
    assert story.condition("Scheduled") == ("False", "NotScheduledYet")


def test_a_pod_in_preparation_is_looked_at_again_more_and_more_seldom() -> None:
    story = story_of({"startTime": START, "containerStatuses": waiting("ContainerCreating")})
    looks = {seconds: story.plan(seconds).requeue_after for seconds in (1.0, 5.0, 30.0, 500.0)}
    assert looks == {1.0: 4.0, 5.0: 5.0, 30.0: 30.0, 500.0: 60.0}
    story.pod = with_status(story.pod, phase="Pending", startTime=START,
                            containerStatuses=waiting("ErrImagePull"))  # fmt: skip
    assert story.plan(600.0).requeue_after is None


def test_what_only_an_event_tells_is_in_the_condition() -> None:
    story = story_of({"startTime": START, "containerStatuses": waiting("ContainerCreating")})
    text = "FailedMount: hostPath type check failed: /no/such is not a directory"
    story.warnings = {story.pod.metadata.uid: text}
    story.plan(10)
    assert ready(story) == ("CannotStart", text)
    story.pod = running(story.pod)
    story.plan(20)
    assert story.condition("Ready") == ("True", "PodReady")
    assert all(c.message for c in story.status.conditions if c.type != "FactsKnown")


def event(
    uid: str, reason: str, second: int, note: str = "", *, series: int | None = None
) -> dict[str, Any]:
    seen = {"lastObservedTime": f"2026-01-01T12:00:{series:02}.000001Z"} if series else None
    return {
        "reason": reason,
        "note": note or reason,
        "regarding": {"uid": uid},
        "deprecatedLastTimestamp": f"2026-01-01T12:00:{second:02}Z",
        "metadata": {"creationTimestamp": "2026-01-01T11:00:00Z"},
        **({"series": seen} if seen else {}),
    }


def test_the_newest_warning_of_each_pod_counts() -> None:
    found = newest_warnings(
        [
            event("a", "FailedMount", 30, "second"),
            event("a", "FailedMount", 10, "first"),
            event("a", "FailedScheduling", 50),
            event("b", "FailedMount", 1, "recurring", series=40),
            event("b", "FailedCreatePodSandBox", 20),
            event("c", "FailedScheduling", 5),
        ]
    )
    assert found == {"a": "FailedMount: second", "b": "FailedMount: recurring"}
