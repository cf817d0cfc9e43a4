"""What becomes of an EngineCore whose pods fail."""

import msgspec
import pytest

from enginecore_operator.api.conditions import ConditionType, find_condition
from enginecore_wire.contract import ServerStatus
from enginecore_wire.packed_log import pack
from support.operator_objects import (
    CoreStory,
    created,
    failed,
    on_node,
    running,
    started,
    told,
    with_status,
)


def test_a_failed_init_container_says_why() -> None:
    story = CoreStory(runtime={"type": "vllm"})
    copier = created(story.plan())[0]["spec"]["initContainers"][0]
    assert copier["terminationMessagePolicy"] == "FallbackToLogsOnError"
    fine = {"terminated": {"exitCode": 0, "reason": "Completed"}}
    end = {"terminated": {"exitCode": 1, "reason": "Error", "message": "cp: no space left"}}
    story.pod = with_status(
        on_node(story.pod),
        phase="Failed",
        initContainerStatuses=[
            {"name": "fetch", "state": fine},
            {"name": copier["name"], "state": end},
        ],
        containerStatuses=[{"name": "engine", "state": {"waiting": {"reason": "PodInitializing"}}}],
    )
    (event,) = story.plan(5).events
    failure = story.status.failure
    assert failure is not None
    assert failure.reason == "Error"
    text = f"init container {copier['name']} exited 1; its last output: cp: no space left"
    assert failure.message == text
    assert text in event.message


def test_failures_back_off_then_give_up() -> None:
    story = CoreStory(restart={"initialSeconds": 2, "maxSeconds": 5, "limit": 4})
    story.plan()
    clock = 0.0
    for count, wait in ((1, 2.0), (2, 4.0), (3, 5.0)):
        story.pod = failed(story.pod, log=f"try {count}")
        plan = story.plan(clock)
        assert told(plan) == ["PodFailed"]
        assert not created(plan)
        assert plan.requeue_after == wait
        assert story.status.phase == "BackOff"
        assert story.condition("Ready") == ("False", "BackOff")
        assert not story.plan(clock + wait - 0.1).stages
        clock += wait
        (pod,) = created(story.plan(clock))
        assert pod["metadata"]["name"] == f"smollm-0-{count + 1}"
        assert story.status.restarts == count
        story.pods = story.pods[-1:]
    story.pod = failed(story.pod, log="the last words")
    plan = story.plan(clock)
    assert told(plan) == ["PodFailed", "RestartLimitReached"]
    assert "the last words" in plan.events[1].message
    assert plan.requeue_after is None
    assert story.status.phase == "Failed"
    assert story.condition("Ready") == ("False", "RestartLimitReached")
    ready = next(c for c in story.status.conditions if c.type == "Ready")
    assert "the last words" in ready.message
    later = story.plan(clock + 10_000)
    assert (later.stages, later.events) == ((), ())


def test_changed_spec_starts_a_given_up_engine() -> None:
    story = CoreStory(restart={"limit": 1})
    story.plan()
    story.pod = failed(story.pod)
    story.plan(1)
    assert story.status.phase == "Failed"
    story.change_spec(restart={"limit": 1}, runtime={"image": "better:2"})
    (pod,) = created(story.plan(2))
    assert pod["spec"]["containers"][0]["image"] == "better:2"
    story.pods = [failed(story.pod)]
    story.plan(3)
    assert story.status.failure is not None
    assert story.status.failure.count == 1


@pytest.mark.parametrize(("ready_for", "count"), [(10, 2), (59, 2), (60, 1), (5000, 1)])
def test_stable_engine_starts_to_count_anew(ready_for: float, count: int) -> None:
    story = CoreStory()
    story.plan()
    story.pod = failed(story.pod)
    story.plan(0)
    story.plan(1)
    story.pods = [running(story.pod)]
    story.plan(2)
    story.pod = failed(story.pod)
    story.plan(2 + ready_for)
    assert story.status.failure is not None
    assert story.status.failure.count == count


@pytest.mark.parametrize(
    ("pod_status", "reason"),
    [
        ({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}, "Evicted"),
        ({"phase": "Succeeded"}, "Succeeded"),
        (
            {
                "phase": "Running",
                "containerStatuses": [
                    {
                        "name": "engine",
                        "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
                    }
                ],
            },
            "OOMKilled",
        ),
    ],
    ids=["evicted", "finished", "ended beside a sidecar"],
)
def test_every_end_is_a_failure(pod_status: dict[str, object], reason: str) -> None:
    story = started()
    story.pod = with_status(on_node(story.pod), **pod_status)
    plan = story.plan(100)
    assert told(plan) == ["PodFailed"]
    assert story.status.failure is not None
    assert story.status.failure.reason == reason
    (pod,) = created(story.plan(101))
    assert pod["metadata"]["name"] == "smollm-0-2"


def test_servers_last_words_are_told_as_text() -> None:
    words = ServerStatus(
        name="smollm-0",
        rank=0,
        epoch=1,
        phase="Failed",
        reason="EngineExited",
        message="the engine's process exited with code 1",
        log_tail=["loading", "no such model"],
    )
    story = started()
    story.pod = failed(story.pod, log=msgspec.json.encode(words).decode())
    story.plan(100)
    failure = story.status.failure
    assert failure is not None
    assert failure.reason == "EngineExited"
    text = "the engine's process exited with code 1; its last output: loading\nno such model"
    assert failure.message == text


def test_the_packed_log_is_told_where_it_has_more() -> None:
    lines = [f"line {number}" for number in range(50)]
    words = ServerStatus(
        name="smollm-0", rank=0, epoch=1, phase="Failed", message="dead", log_tail=lines[-3:],
        log_packed=pack(lines),
    )  # fmt: skip
    story = started()
    story.pod = failed(story.pod, log=msgspec.json.encode(words).decode())
    story.plan(100)
    assert story.status.failure is not None
    assert story.status.failure.message == "dead; its last output: " + "\n".join(lines)


def test_a_condition_has_the_cause_before_a_long_log() -> None:
    """All of the log is in status.failure."""
    lines = [f"{number} {'x' * 200}" for number in range(50)]
    cause = "the worker TP1 has ended; the first error in its log: no memory"
    words = ServerStatus(
        name="smollm-0", rank=0, epoch=1, phase="Failed", message=cause, log_packed=pack(lines)
    )
    story = CoreStory(restart={"limit": 1})
    story.plan()
    story.pod = failed(story.pod, log=msgspec.json.encode(words).decode())
    story.plan(100)
    assert story.status.failure is not None
    assert story.status.failure.message == f"{cause}; its last output: " + "\n".join(lines)
    ready = find_condition(story.status.conditions, ConditionType.READY)
    assert ready is not None
    assert cause in ready.message
    assert ready.message.endswith(lines[-1])
    assert len(ready.message) < 4400


def test_deleting_a_failed_pod_does_not_cut_the_back_off_short() -> None:
    story = CoreStory(restart={"initialSeconds": 10})
    story.plan()
    story.pod = failed(story.pod)
    story.plan(0)
    story.pods.clear()
    plan = story.plan(3)
    assert not plan.stages
    assert plan.requeue_after == 7.0
    assert created(story.plan(10))
