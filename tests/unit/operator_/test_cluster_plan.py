"""One EngineCluster, pass by pass."""

import msgspec
import pytest

from enginecore_operator.plan.actions import Apply, Create, Delete, Plan
from enginecore_operator.plan.observed import ObjectMeta, ObservedObject
from support.cluster_story import ClusterStory, settled
from support.operator_objects import NAMESPACE, created, observed_core, told


def names(plan: Plan, kind: type) -> list[str]:
    found = []
    for action in (action for stage in plan.stages for action in stage):
        if isinstance(action, kind):
            ref = getattr(action, "ref", None)
            found.append(ref.name if ref else action.manifest["metadata"]["name"])  # type: ignore[union-attr]
    return found


def test_first_pass_creates_everything() -> None:
    story = ClusterStory(replicas=2)
    plan = story.plan()
    assert sorted(names(plan, Create)) == [
        "smollm-0",
        "smollm-1",
        "smollm-client-addresses",
        *["smollm-coordinator"] * 3,
        *["smollm-engines"] * 2,
    ]
    assert told(plan) == ["Created"]
    assert story.condition("Available") == ("False", "ReplicasNotReady")
    for manifest in created(plan):
        (owner,) = manifest["metadata"]["ownerReferences"]
        assert owner["uid"] == "uid-smollm"
        assert owner["controller"]
        assert "blockOwnerDeletion" not in owner
        assert "finalizers" not in manifest["metadata"]


def test_settled_cluster_is_left_alone() -> None:
    story = settled(3)
    plan = story.plan()
    assert plan.stages == ()
    assert plan.events == ()
    assert story.condition("Available") == ("True", "AllReplicasReady")
    assert story.condition("Progressing") == ("False", "Settled")
    assert story.condition("Degraded") == ("False", "AsExpected")
    status = story.status
    assert (status.replicas, status.ready_replicas, status.updated_replicas) == (3, 3, 3)
    assert status.selector == "enginecore.dev/cluster=smollm,enginecore.dev/component=engine"


def test_client_addresses() -> None:
    story = ClusterStory(replicas=3)
    story.plan()
    service = story.objects["Service"]["smollm-coordinator"]
    raw = {**service.raw, "spec": {**service.raw["spec"], "clusterIP": "fd00::10"}}
    story.objects["Service"]["smollm-coordinator"] = ObservedObject(service.metadata, raw)
    story.ready(0, 2)
    story.plan()
    addresses = story.status.client_addresses
    assert addresses.input_address == ["tcp://10.0.0.0:5557", "", "tcp://10.0.0.2:5557"]
    assert addresses.output_address == ["tcp://10.0.0.0:5558", "", "tcp://10.0.0.2:5558"]
    assert addresses.stats_update_address == "tcp://[fd00::10]:5560"
    data = story.objects["ConfigMap"]["smollm-client-addresses"].raw["data"]
    written = msgspec.json.decode(data["client_addresses.json"])
    assert written == {k: v for k, v in msgspec.to_builtins(addresses).items() if v is not None}
    named = msgspec.json.decode(data["client_addresses_dns.json"])
    assert named["input_address"][1] == f"tcp://smollm-1.smollm-engines.{NAMESPACE}.svc:5557"


@pytest.mark.parametrize(
    ("before", "after", "made", "removed"),
    [
        (1, 3, ["smollm-1", "smollm-2"], []),
        (3, 1, [], ["smollm-2", "smollm-1"]),
        (2, 0, [], ["smollm-1", "smollm-0"]),
        (0, 1, ["smollm-0"], []),
    ],
)
def test_scale(before: int, after: int, made: list[str], removed: list[str]) -> None:
    story = settled(before)
    story.change_spec(replicas=after)
    plan = story.plan()
    assert names(plan, Create) == made
    assert names(plan, Delete) == removed
    story.ready(*range(after))
    story.plan()
    assert story.status.replicas == after
    assert len(story.status.client_addresses.input_address) == after


def test_rollout_goes_one_by_one_from_the_highest_rank() -> None:
    story = settled(3)
    story.change_spec(replicas=3, runtime={"image": "new:2"})
    for rank in (2, 1, 0):
        plan = story.plan()
        assert names(plan, Apply) == [f"smollm-{rank}"]
        assert told(plan) == ["Updated"]
        assert f"smollm-{rank}: spec.runtime.image: '' -> 'new:2'" in plan.events[0].message
        assert story.condition("Progressing") == ("True", "RollingOut")
        assert story.plan().stages == ()
        story.ready(rank)
    story.plan()
    assert story.plan().stages == ()
    assert story.condition("Progressing") == ("False", "Settled")


def test_rollout_waits_for_an_engine_that_somebody_deletes() -> None:
    story = settled(3)
    leaving = story.cores["smollm-0"]
    meta = msgspec.structs.replace(leaving.metadata, deletion_timestamp="2026-01-01T0:0:0Z")
    story.cores["smollm-0"] = msgspec.structs.replace(leaving, metadata=meta)
    story.change_spec(replicas=3, runtime={"image": "new:2"})
    assert names(story.plan(), Apply) == ["smollm-client-addresses"]
    del story.cores["smollm-0"]
    assert names(story.plan(), Create) == ["smollm-0"]
    story.ready(0)
    assert names(story.plan(), Apply)[0] == "smollm-2"


def test_rollout_waits_while_a_rank_has_no_engine_as_its_name_is_taken() -> None:
    story = settled(3)
    story.cores["smollm-1"] = observed_core(name="smollm-1")
    story.change_spec(replicas=3, runtime={"image": "new:2"})
    assert names(story.plan(), Apply) == ["smollm-client-addresses"]
    assert story.condition("Degraded") == ("True", "NameTaken")
    del story.cores["smollm-1"]
    assert names(story.plan(), Create) == ["smollm-1"]
    story.ready(1)
    assert names(story.plan(), Apply)[0] == "smollm-2"


def test_rollout_to_a_broken_spec_is_mended_by_the_next() -> None:
    story = settled(3)
    story.change_spec(replicas=3, runtime={"image": "broken:2"})
    story.plan()
    assert story.plan().stages == ()
    story.says(2, "PodNotReady")
    story.change_spec(replicas=3, runtime={"image": "good:3"})
    assert names(story.plan(), Apply) == ["smollm-2"]


def test_paused_rollout_still_scales() -> None:
    story = settled(2)
    story.change_spec(replicas=3, runtime={"image": "new:2"}, rollout={"paused": True})
    plan = story.plan()
    assert names(plan, Create) == ["smollm-2"]
    assert names(plan, Apply) == ["smollm-client-addresses"]
    story.ready(0, 1, 2)
    story.plan()
    assert story.condition("Progressing") == ("False", "Paused")


def test_change_that_replaces_no_pod_reaches_all_at_once() -> None:
    story = settled(3)
    story.change_spec(replicas=3, restart={"limit": 3})
    plan = story.plan()
    assert sorted(names(plan, Apply)) == ["smollm-0", "smollm-1", "smollm-2"]
    assert plan.events == ()


@pytest.mark.parametrize("paused", [True, False])
def test_such_a_change_does_not_wait_for_an_engine_s_turn(paused: bool) -> None:
    story = settled(3, transport={"expose": "LoadBalancer"})
    before = {name: core.metadata.labels for name, core in story.cores.items()}
    new = {"runtime": {"image": "new:2"}, "restart": {"limit": 3}}
    story.change_spec(replicas=3, rollout={"paused": paused}, **new)
    turn = [] if paused else ["smollm-2"]
    applied = [name for name in names(story.plan(), Apply) if name in story.cores]
    assert sorted(applied) == ["smollm-0", "smollm-1", "smollm-2"]
    for name, core in story.cores.items():
        assert core.spec["transport"]["expose"] == "None"
        assert core.spec["restart"]["limit"] == 3
        assert core.spec["runtime"]["image"] == ("new:2" if name in turn else "")
        assert (core.metadata.labels == before[name]) == (name not in turn)
    assert story.plan().stages == (), "engines that have yet to see it are not taken for broken"
    story.ready(0, 1, 2)
    next_turn = [name for name in names(story.plan(), Apply) if name in story.cores]
    assert next_turn == ([] if paused else ["smollm-1"])


def test_edited_child_is_brought_back() -> None:
    story = settled(2)
    core = story.cores["smollm-1"]
    story.cores["smollm-1"] = msgspec.structs.replace(
        core, spec={**core.spec, "drain": {"deadlineSeconds": 1}}
    )
    deployment = story.objects["Deployment"]["smollm-coordinator"]
    raw = {**deployment.raw, "spec": {**deployment.raw["spec"], "replicas": 5}}
    story.objects["Deployment"]["smollm-coordinator"] = ObservedObject(deployment.metadata, raw)
    assert sorted(names(story.plan(), Apply)) == ["smollm-1", "smollm-coordinator"]


def test_names_of_others_are_left_alone() -> None:
    story = ClusterStory(replicas=1)
    story.cores["smollm-0"] = observed_core(name="smollm-0")
    meta = ObjectMeta(name="smollm-engines", namespace=NAMESPACE, uid="other")
    theirs = ObservedObject(meta, {"metadata": {}})
    story.objects["Service"]["smollm-engines"] = theirs
    story.objects["NetworkPolicy"]["smollm-engines"] = theirs
    plan = story.plan()
    assert "smollm-0" not in names(plan, Create)
    assert "smollm-engines" not in [*names(plan, Create), *names(plan, Apply)]
    assert "NameTaken" in told(plan)
    assert story.condition("Degraded") == ("True", "NameTaken")
    degraded = next(c for c in story.status.conditions if c.type == "Degraded")
    taken = "Service smollm-engines, NetworkPolicy smollm-engines, EngineCore smollm-0"
    assert taken in degraded.message


def test_invalid_spec_touches_nothing() -> None:
    story = settled(2)
    story.change_spec(replicas=2, model={"name": ""})
    plan = story.plan()
    assert plan.stages == ()
    assert story.condition("Degraded") == ("True", "InvalidSpec")
    assert story.status.client_addresses.input_address[0]
    assert story.plan().events == ()


def test_cluster_being_deleted_is_left_alone() -> None:
    story = ClusterStory()
    meta = msgspec.structs.replace(story.cluster.metadata, deletion_timestamp="2026-01-01T0:0:0Z")
    story.cluster = msgspec.structs.replace(story.cluster, metadata=meta)
    assert story.plan().stages == ()
