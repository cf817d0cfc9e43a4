"""Conditions of an EngineCluster: what they say of its engines, and when it is an Event."""

import pytest

from enginecore_operator.api.status import Failure
from support.cluster_story import ClusterStory, settled
from support.operator_objects import told


def test_not_available_before_every_engine_was_ready() -> None:
    story = ClusterStory(replicas=3)
    story.plan()
    assert story.condition("Available") == ("False", "ReplicasNotReady")
    story.ready(0, 1)
    story.plan()
    assert story.condition("Available") == ("False", "ReplicasNotReady")
    assert story.message("Available") == "2 of 3 engines are ready, 3 are needed"
    story.ready(2)
    story.plan()
    assert story.condition("Available") == ("True", "AllReplicasReady")
    assert story.status.established_replicas == 3


def test_available_while_engines_are_added() -> None:
    story = settled(2)
    story.change_spec(replicas=4)
    story.plan()
    assert story.condition("Available") == ("True", "EnoughReplicasReady")
    assert story.condition("Progressing") == ("True", "Scaling")
    story.ready(2)
    story.plan()
    assert story.message("Available") == "3 of 4 engines are ready, 1 is needed"
    assert story.condition("Progressing") == ("True", "Starting")
    # Those that were added do not stand for those that served.
    assert story.status.established_replicas == 2
    story.ready(3)
    story.plan()
    assert story.condition("Available") == ("True", "AllReplicasReady")
    assert story.status.established_replicas == 4


@pytest.mark.parametrize(
    ("replicas", "spared", "lost", "available"),
    [(3, 1, 1, "True"), (3, 1, 2, "False"), (3, 2, 2, "True"), (3, 9, 3, "False"),
     (1, 1, 1, "False")],
)  # fmt: skip
def test_loss_of_engines(replicas: int, spared: int, lost: int, available: str) -> None:
    story = settled(replicas, rollout={"maxUnavailable": spared})
    for rank in range(lost):
        story.says(rank, "PodPending")
    story.plan()
    assert story.condition("Available")[0] == available


def test_from_zero_every_engine_counts_again() -> None:
    story = settled(2)
    story.change_spec(replicas=0)
    story.plan()
    story.plan()
    assert story.condition("Available") == ("False", "ScaledToZero")
    assert story.condition("Progressing") == ("False", "Settled")
    story.change_spec(replicas=2)
    story.plan()
    story.ready(0)
    story.plan()
    assert story.condition("Available") == ("False", "ReplicasNotReady")


@pytest.mark.parametrize(
    ("reason", "degraded"),
    [
        ("RestartLimitReached", "EngineFailed"),
        ("BackOff", "EngineFailed"),
        ("InvalidSpec", "EngineFailed"),
        ("RefusedByApi", "EngineFailed"),
        ("CannotStart", "EngineStuck"),
        ("Unschedulable", "EngineStuck"),
        ("PodPending", "AsExpected"),
        ("PodNotReady", "AsExpected"),
        ("Draining", "AsExpected"),
    ],
)
def test_a_bad_engine_degrades_the_cluster_and_is_named(reason: str, degraded: str) -> None:
    story = ClusterStory(replicas=2)
    story.plan()
    story.says(1, reason, "for want of a nail")
    plan = story.plan()
    bad = degraded != "AsExpected"
    assert story.condition("Degraded") == (str(bad), degraded)
    assert told(plan) == [degraded] * bad
    if bad:
        text = f"smollm-1: {reason}: for want of a nail"
        assert story.message("Degraded") == text
        assert [(event.type, event.message) for event in plan.events] == [("Warning", text)]
    assert story.plan().events == ()


def test_of_several_bad_engines_failed_ones_come_first() -> None:
    story = ClusterStory(replicas=5)
    story.plan()
    for rank in range(4):
        story.says(rank, "Unschedulable", "no room")
    story.says(4, "BackOff", "again at noon")
    story.plan()
    assert story.condition("Degraded") == ("True", "EngineFailed")
    assert story.message("Degraded") == (
        "smollm-4: BackOff: again at noon; smollm-0: Unschedulable: no room; "
        "smollm-1: Unschedulable: no room; and 2 more"
    )


def test_an_engine_that_starts_again_stays_bad_until_it_is_ready() -> None:
    story = settled(1)
    revision = story.status.current_revision
    failure = Failure(epoch=1, count=2, time="", reason="Error", message="boom", revision=revision)
    story.says(0, "BackOff", "starts again", epoch=1, failure=failure)
    assert told(story.plan()) == ["EngineFailed"]
    story.says(0, "PodPending", epoch=2, failure=failure)
    assert told(story.plan()) == []
    assert story.condition("Degraded") == ("True", "EngineFailed")
    assert story.message("Degraded") == "smollm-0: 2 failures in a row, the last: Error: boom"
    story.ready(0)
    story.plan()
    assert story.condition("Degraded") == ("False", "AsExpected")


def test_a_changed_spec_forgets_the_failure_before() -> None:
    story = settled(1)
    failure = Failure(epoch=1, count=2, time="", reason="Error", message="boom", revision="old")
    story.says(0, "PodPending", epoch=2, failure=failure)
    story.plan()
    assert story.condition("Degraded") == ("False", "AsExpected")


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        (1, "Created the engine of rank 0"),
        (2, "Created the engines of ranks 0 to 1"),
        (0, None),
    ],
)
def test_created_engines_are_told(ranks: int, words: str | None) -> None:
    plan = ClusterStory(replicas=ranks).plan()
    assert [event.message for event in plan.events] == ([words] if words else [])


def test_no_message_is_empty() -> None:
    story = ClusterStory(replicas=1)
    for step in (lambda: None, lambda: story.ready(0), lambda: story.says(0, "BackOff", "later")):
        step()
        story.plan()
        assert all(c.message for c in story.status.conditions), story.status.conditions
    assert settled(1).message("Available") == "1 engine is ready"
