"""One EngineCore, pass by pass."""

import msgspec
import pytest

from enginecore_operator.api import labels
from enginecore_operator.plan.actions import Delete, Patch
from enginecore_operator.plan.observed import FactsReading
from enginecore_operator.plan.orphans import plan_orphans
from enginecore_wire.contract import EngineFacts, ServerStatus
from support.operator_objects import (
    CoreStory,
    created,
    deleted,
    node,
    on_node,
    running,
    started,
    told,
    with_status,
)


def actions(plan: object, kind: type) -> list[object]:
    stages = plan.stages  # type: ignore[attr-defined]
    return [action for stage in stages for action in stage if isinstance(action, kind)]


def test_first_pod() -> None:
    story = CoreStory()
    plan = story.plan()
    (pod,) = created(plan)
    assert pod["metadata"]["name"] == "smollm-0-1"
    assert story.status.epoch == 1
    assert story.status.restarts == 0
    assert story.condition("Ready") == ("False", "PodPending")
    assert told(plan) == ["Created"]


def test_ready_pod_is_left_alone() -> None:
    story = started()
    assert story.condition("Ready") == ("True", "PodReady")
    assert story.status.phase == "Ready"
    assert story.status.input_address == "tcp://10.0.0.1:5557"
    assert story.status.output_address == "tcp://10.0.0.1:5558"
    before = story.status
    plan = story.plan(100)
    assert not plan.stages
    assert not plan.events
    assert plan.status == before


@pytest.mark.parametrize(
    ("ips", "host"),
    [
        (["fd00::7"], "[fd00::7]"),
        (["fd00::7", "10.0.0.7"], "[fd00::7]"),
        (["10.0.0.7", "fd00::7"], "10.0.0.7"),
    ],
    ids=["IPv6", "dual stack", "dual stack, IPv4 first"],
)
def test_addresses_are_of_the_pod_s_first_family(ips: list[str], host: str) -> None:
    story = CoreStory()
    story.plan()
    story.pod = with_status(
        on_node(story.pod), phase="Running", podIP=ips[0], podIPs=[{"ip": ip} for ip in ips]
    )
    plan = story.plan(1)
    assert story.status.input_address == f"tcp://{host}:5557"
    assert story.status.output_address == f"tcp://{host}:5558"
    assert story.status.pod.ip == ips[0]
    assert plan.ask is not None
    assert plan.ask.url == f"http://{host}:8080/status"


@pytest.mark.parametrize(
    ("fate", "restarts", "grace"),
    [
        pytest.param("gone", 1, None, id="the pod is gone"),
        pytest.param("deleted", 1, None, id="the pod is being deleted"),
        pytest.param("node lost", 1, 0, id="the node is gone"),
        pytest.param("spec", 0, "own", id="the spec changed"),
    ],
)
def test_replaced_at_once(fate: str, restarts: int, grace: object) -> None:
    story = started()
    match fate:
        case "gone":
            story.pods.clear()
        case "deleted":
            story.pod = deleted(story.pod)
        case "node lost":
            story.nodes = {}
        case "spec":
            story.change_spec(drain={"deadlineSeconds": 5})
    plan = story.plan(2)
    (pod,) = created(plan)
    assert pod["metadata"]["name"] == "smollm-0-2"
    assert (story.status.epoch, story.status.restarts) == (2, restarts)
    assert story.status.input_address == ""
    assert told(plan) == ["Replaced"]
    deletes = [a.grace_seconds for a in actions(plan, Delete) if isinstance(a, Delete)]
    assert deletes == {None: [], 0: [0], "own": [None]}[grace]  # type: ignore[index]


@pytest.mark.parametrize("fate", ["deleted", "spec"])
def test_name_is_taken_from_a_pod_before_it_is_replaced(fate: str) -> None:
    story = started()
    if fate == "deleted":
        story.pod = deleted(story.pod)
    else:
        story.change_spec(runtime={"args": ["--x"]})
    first = story.plan(2).stages[0]
    assert [type(action) for action in first] == [Patch]
    (patch,) = first
    assert isinstance(patch, Patch)
    assert patch.patch == {"metadata": {"labels": {labels.ADDRESSABLE: None}}}
    assert patch.ref.name == "smollm-0-1"


def test_pods_of_a_deleted_namesake_keep_their_names() -> None:
    story = CoreStory()
    story.plan()
    meta = msgspec.structs.replace(story.pod.metadata, owner_references=[])
    stranger = deleted(msgspec.structs.replace(story.pod, metadata=meta))
    other = CoreStory()
    other.pods = [stranger]
    (pod,) = created(other.plan())
    assert pod["metadata"]["name"] == "smollm-0-2"


def test_operator_restarted_between_pod_and_status() -> None:
    story = CoreStory()
    story.plan()
    story.core = msgspec.structs.replace(story.core, status=type(story.status)())
    plan = story.plan(1)
    assert not created(plan)
    assert story.status.epoch == 1


def test_older_pods_are_removed() -> None:
    story = started()
    old = story.pod
    story.change_spec(runtime={"args": ["--x"]})
    story.plan(2)
    (delete,) = actions(story.plan(3), Delete)
    assert isinstance(delete, Delete)
    assert delete.ref.name == "smollm-0-1"
    story.pods[0] = deleted(old)
    assert not story.plan(4).stages


def test_pods_of_an_engine_that_is_gone() -> None:
    story = started()
    kept = msgspec.structs.replace(story.pod.metadata, name="kept", owner_references=[])
    left = msgspec.structs.replace(story.pod, metadata=kept)
    pods = [story.pod, left, deleted(story.pod)]
    doomed = plan_orphans("EngineCore", "Pod", pods)
    assert [action.ref.name for action in doomed] == ["smollm-0-1"]  # type: ignore[union-attr]


def test_deleted_engine_gets_no_pod() -> None:
    story = CoreStory()
    meta = msgspec.structs.replace(story.core.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    story.core = msgspec.structs.replace(story.core, metadata=meta)
    assert not story.plan().stages


def test_invalid_spec_touches_nothing() -> None:
    story = started()
    story.change_spec(transport={"inputPort": 7000, "outputPort": 7000})
    plan = story.plan(2)
    assert not plan.stages
    assert told(plan) == ["InvalidSpec"]
    assert story.condition("Ready") == ("False", "InvalidSpec")
    assert story.status.input_address
    assert not story.plan(3).events


def test_transition_time_moves_only_on_a_flip() -> None:
    story = started()
    before = {c.type: c.last_transition_time for c in story.status.conditions}
    story.plan(50)
    assert {c.type: c.last_transition_time for c in story.status.conditions} == before
    story.pod = running(story.pod, ready=False)
    plan = story.plan(90)
    after = {c.type: c.last_transition_time for c in story.status.conditions}
    assert after["Ready"] == "2026-01-01T12:01:30Z"
    assert after["Scheduled"] == before["Scheduled"]
    assert told(plan) == ["EngineNotReady"]


class TestFacts:
    FACTS = EngineFacts(version="1", dtype="bfloat16", max_model_len=2048, vocab_size=49152)

    def reading(
        self, story: CoreStory, phase: str, facts: EngineFacts | None, *, ready: bool
    ) -> FactsReading:
        status = ServerStatus(name="smollm-0", rank=0, epoch=1, phase=phase, engine=facts)
        return FactsReading(story.pod.metadata.uid, ready, at=0.0, status=status)

    def test_loading_engine_is_asked_until_it_is_ready(self) -> None:
        story = CoreStory()
        story.plan()
        story.pod = running(story.pod, ready=False)
        plan = story.plan(1)
        assert plan.ask is not None
        assert plan.ask.url == "http://10.0.0.1:8080/status"
        assert plan.requeue_after == 2.0
        assert story.status.phase == "Starting"
        story.reading = self.reading(story, "Loading", None, ready=False)
        assert story.plan(2).ask is not None
        assert story.status.phase == "Loading"
        story.reading = self.reading(story, "Ready", self.FACTS, ready=False)
        plan = story.plan(3)
        assert (plan.ask, plan.requeue_after) == (None, None)
        assert story.status.engine == self.FACTS
        assert story.condition("FactsKnown") == ("True", "FactsRead")
        assert story.status.phase == "Loading"
        story.pod = running(story.pod)
        assert story.plan(4).ask is not None
        story.reading = self.reading(story, "Ready", self.FACTS, ready=True)
        assert story.plan(5).ask is None
        assert story.status.phase == "Ready"

    def test_what_a_loading_engine_does_is_told(self) -> None:
        story = CoreStory()
        story.plan()
        story.pod = running(story.pod, ready=False)
        story.plan(1)
        assert self.words(story) == "the engine is not ready yet"
        status = ServerStatus(
            name="smollm-0",
            rank=0,
            epoch=1,
            phase="Loading",
            reason="WarmingUp",
            message="warms up",
        )
        story.reading = FactsReading(story.pod.metadata.uid, False, at=0.0, status=status)
        story.plan(2)
        assert self.words(story) == "the engine is not ready yet: Loading: warms up"
        assert story.condition("Ready") == ("False", "PodNotReady")

    def words(self, story: CoreStory) -> str:
        return next(c.message for c in story.status.conditions if c.type == "Ready")

    def test_known_facts_outlive_the_operator(self) -> None:
        story = started()
        story.reading = self.reading(story, "Ready", self.FACTS, ready=True)
        story.plan(2)
        story.reading = None
        plan = story.plan(3)
        assert plan.ask is None
        assert story.status.engine == self.FACTS

    def test_facts_end_with_their_epoch(self) -> None:
        story = started()
        story.reading = self.reading(story, "Ready", self.FACTS, ready=True)
        story.plan(2)
        story.pods.clear()
        story.plan(3)
        assert story.status.engine is None
        story.pod = running(story.pod)
        story.plan(4)
        assert story.status.engine is None

    def test_simulated_nodes_are_never_dialled(self) -> None:
        story = CoreStory()
        story.nodes = node(simulated=True)
        story.plan()
        story.pod = running(story.pod)
        plan = story.plan(1)
        assert plan.ask is None
        assert plan.requeue_after is None
        assert story.condition("FactsKnown") == ("False", "SimulatedNode")

    def test_silent_engine_says_why(self) -> None:
        story = CoreStory()
        story.plan()
        story.pod = running(story.pod, ready=False)
        story.reading = FactsReading(story.pod.metadata.uid, False, 0.0, error="refused")
        story.plan(1)
        assert story.condition("FactsKnown") == ("False", "NotAnswering")
