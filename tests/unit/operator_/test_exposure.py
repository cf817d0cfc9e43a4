"""The way to an engine for clients outside the cluster."""

from typing import Any

import msgspec
import pytest

from enginecore_operator.api.status import ClientAddresses, EngineClusterStatus, EngineCoreStatus
from enginecore_operator.kube.cache import Cache, Change
from enginecore_operator.plan.actions import Apply, Create, Delete, Plan
from enginecore_operator.plan.core_plan import refuse_exposure
from enginecore_operator.plan.observed import ClusterView, CoreView
from enginecore_operator.plan.revision import compute_revision
from enginecore_operator.wakes import keys_concerned
from support.operator_objects import (
    CoreStory,
    actions_of,
    at,
    cluster_spec,
    condition_of,
    created,
    failed,
    node,
    observed_cluster,
    observed_core,
    plan_for_cluster,
    read_core_spec,
    running,
    service_from,
    told,
)

EXPOSED = {"expose": "NodePort"}
NODE = [("Hostname", "n1"), ("InternalIP", "192.168.1.5")]


def started(expose: str = "NodePort", **story: Any) -> CoreStory:
    """Return the story of an exposed engine whose pod is Ready."""
    found = CoreStory(transport={"expose": expose})
    found.nodes = node(addresses=NODE)
    for name, value in story.items():
        setattr(found, name, value)
    found.plan()
    found.pod = running(found.pod)
    found.plan(1)
    return found


def exposed(story: CoreStory) -> tuple[str, str]:
    return story.status.exposed_input_address, story.status.exposed_output_address


def services(plan: Plan, kind: Any) -> list[Any]:
    """Return what a plan does to Services, of a kind of action."""
    actions = [action for action in actions_of(plan) if isinstance(action, kind)]
    return [a for a in actions if kind_concerned(a) == "Service"]


def kind_concerned(action: Any) -> str:
    return str(action.ref.kind if hasattr(action, "ref") else action.manifest["kind"])


def test_the_service_of_an_engine() -> None:
    story = CoreStory(transport={"expose": "NodePort", "inputPort": 7001})
    (service,) = [m for m in created(story.plan()) if m["kind"] == "Service"]
    assert service["metadata"]["name"] == "smollm-0-exposed"
    assert service["metadata"]["ownerReferences"][0]["uid"] == "uid-smollm-0"
    assert service["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "enginecore-operator"
    spec = service["spec"]
    assert spec["selector"] == {
        "enginecore.dev/core": "smollm-0",
        "enginecore.dev/addressable": "true",
    }
    assert spec["ipFamilyPolicy"] == "PreferDualStack"
    assert {p["name"]: (p["port"], p["targetPort"]) for p in spec["ports"]} == {
        "input": (7001, "input"),
        "output": (5558, "output"),
    }


def test_an_engine_is_not_exposed_unless_asked_for() -> None:
    story = CoreStory()
    assert [m["kind"] for m in created(story.plan())] == ["Pod"]
    assert "Exposed" not in {c.type for c in story.status.conditions}


@pytest.mark.parametrize(
    ("addresses", "families", "host"),
    [
        (NODE, ["IPv4"], "192.168.1.5"),
        ([*NODE, ("ExternalIP", "203.0.113.9")], ["IPv4"], "203.0.113.9"),
        ([("InternalIP", "fd00::5")], ["IPv6"], "[fd00::5]"),
        ([("InternalIP", "fd00::5"), *NODE], ["IPv4"], "192.168.1.5"),
        ([("InternalIP", "fd00::5"), *NODE], ["IPv6", "IPv4"], "[fd00::5]"),
        ([("ExternalIP", "2001:db8::1"), *NODE], ["IPv4"], "192.168.1.5"),
    ],
    ids=["internal", "external", "IPv6", "one family of two", "dual stack", "other family"],
)
def test_by_a_node_s_port(addresses: list[tuple[str, str]], families: list[str], host: str) -> None:
    story = started(nodes=node(addresses=addresses))
    assert story.exposure is not None
    story.exposure = service_from(story.exposure.raw, families=families)
    story.plan(2)
    assert exposed(story) == (f"tcp://{host}:30001", f"tcp://{host}:30002")
    assert story.status.input_address == "tcp://10.0.0.1:5557"
    assert story.condition("Exposed") == ("True", "AddressKnown")
    assert not actions_of(story.plan(3))


@pytest.mark.parametrize("addresses", [[], [("InternalIP", "fd00::5")], [("Hostname", "n1")]])
def test_a_node_without_a_fitting_address(addresses: list[tuple[str, str]]) -> None:
    story = started(nodes=node(addresses=addresses))
    assert exposed(story) == ("", "")
    assert story.condition("Exposed") == ("False", "NoNodeAddress")


@pytest.mark.parametrize(
    ("ingress", "address"),
    [
        ([{"ip": "203.0.113.7"}], "tcp://203.0.113.7:5557"),
        ([{"ip": "2001:db8::7"}], "tcp://[2001:db8::7]:5557"),
        ([{"hostname": "lb.example.com"}], "tcp://lb.example.com:5557"),
        ([{}, {"ip": "203.0.113.7"}], "tcp://203.0.113.7:5557"),
    ],
)
def test_by_a_load_balancer(ingress: list[dict[str, str]], address: str) -> None:
    story = started("LoadBalancer")
    assert story.condition("Exposed") == ("False", "LoadBalancerPending")
    assert exposed(story) == ("", "")
    assert story.exposure is not None
    story.exposure = service_from(story.exposure.raw, ingress=ingress)
    story.plan(2)
    assert story.status.exposed_input_address == address
    assert story.condition("Exposed") == ("True", "AddressKnown")


def test_the_address_goes_with_the_pod() -> None:
    story = started()
    story.pod = failed(story.pod)
    story.plan(2)
    assert exposed(story) == ("", "")
    assert story.condition("Exposed") == ("False", "PodMissing")
    assert story.exposure is not None


def test_the_service_goes_when_it_is_no_longer_wanted() -> None:
    story = started()
    epoch = story.status.epoch
    story.change_spec()
    plan = story.plan(2)
    (delete,) = services(plan, Delete)
    assert (delete.ref.name, delete.ref.uid) == ("smollm-0-exposed", "uid-smollm-0-exposed")
    assert exposed(story) == ("", "")
    assert "Exposed" not in {c.type for c in story.status.conditions}
    assert story.status.epoch == epoch
    assert not actions_of(story.plan(3))


def test_another_kind_changes_the_service_and_no_pod() -> None:
    story = started()
    story.change_spec(transport={"expose": "LoadBalancer"})
    plan = story.plan(2)
    (apply,) = services(plan, Apply)
    assert apply.manifest["spec"]["type"] == "LoadBalancer"
    assert story.condition("Exposed") == ("False", "ServicePending")
    assert exposed(story) == ("", "")
    assert not created(plan)
    story.plan(3)
    assert story.condition("Exposed") == ("False", "LoadBalancerPending")


def test_a_service_that_is_being_deleted_is_waited_for() -> None:
    story = started()
    assert story.exposure is not None
    meta = msgspec.structs.replace(story.exposure.metadata, deletion_timestamp="2026-01-01")
    story.exposure = msgspec.structs.replace(story.exposure, metadata=meta)
    assert not actions_of(story.plan(2))
    assert story.condition("Exposed") == ("False", "ServicePending")
    story.exposure = None
    assert [m["kind"] for m in created(story.plan(3))] == ["Service"]


@pytest.mark.parametrize("expose", ["NodePort", "None"])
def test_another_s_service_is_left_alone(expose: str) -> None:
    story = started()
    assert story.exposure is not None
    meta = msgspec.structs.replace(story.exposure.metadata, owner_references=[])
    story.exposure = msgspec.structs.replace(story.exposure, metadata=meta)
    story.change_spec(transport={"expose": expose})
    plan = story.plan(2)
    assert not services(plan, Create | Apply | Delete)
    assert exposed(story) == ("", "")
    if expose == "NodePort":
        assert story.condition("Exposed") == ("False", "NameTaken")
        assert told(plan) == ["NameTaken"]
        assert not story.plan(3).events


def refuse(story: CoreStory, seconds: float, message: str = "exceeded quota") -> list[str]:
    """Make one pass whose Service the API server refuses; return the reasons of its events."""
    view = CoreView(core=story.core, pods=story.pods, exposure=story.exposure, nodes=story.nodes)
    plan = story.plan(seconds)
    assert plan.exposure
    refused = refuse_exposure(view, plan, message, at(seconds))
    assert isinstance(refused.status, EngineCoreStatus)
    story.core = msgspec.structs.replace(story.core, status=refused.status)
    story.exposure = view.exposure
    return told(refused)


def test_a_refused_service_leaves_the_engine_alone() -> None:
    story = CoreStory()
    story.plan()
    story.pod = running(story.pod)
    story.plan(1)
    story.change_spec(transport=EXPOSED)
    assert refuse(story, 2) == ["RefusedByApi"]
    assert story.condition("Ready") == ("True", "PodReady")
    assert story.condition("Exposed") == ("False", "RefusedByApi")
    status = story.status
    assert refuse(story, 17) == []
    assert story.status == status, "the condition does not flap"
    story.pod = failed(story.pod)
    refuse(story, 32)
    assert story.status.failure is not None
    refuse(story, 47)
    assert (story.status.epoch, story.pod.metadata.name) == (2, "smollm-0-2")
    story.pod = running(story.pod)
    story.nodes = node(addresses=NODE)
    story.plan(48)
    story.plan(49)
    assert story.condition("Exposed") == ("True", "AddressKnown")


def test_a_refused_change_of_the_service_hides_the_address() -> None:
    story = started()
    assert story.condition("Exposed") == ("True", "AddressKnown")
    story.change_spec(transport={"expose": "LoadBalancer"})
    refuse(story, 2)
    assert exposed(story) == ("", "")
    assert story.condition("Exposed") == ("False", "RefusedByApi")
    story.change_spec()
    refuse(story, 3, "services is forbidden")
    assert story.condition("Exposed") == ("False", "RefusedByApi")
    story.plan(4)
    story.plan(5)
    assert "Exposed" not in {c.type for c in story.status.conditions}


def test_a_cluster_is_degraded_by_a_refused_service() -> None:
    story = started()
    story.exposure = None
    refuse(story, 2)
    core = observed_core(status=story.status, name="smollm-0", cluster="smollm")
    view = ClusterView(
        cluster=observed_cluster(cluster_spec(replicas=1, transport=EXPOSED)), cores=[core]
    )
    status = plan_for_cluster(view).status
    assert condition_of(status, "Degraded") == ("True", "RefusedByApi")
    (degraded,) = [c for c in status.conditions if c.type == "Degraded"]
    assert degraded.message == "smollm-0: exceeded quota"


def test_a_service_waits_for_the_pod_and_the_status() -> None:
    story = CoreStory(transport=EXPOSED)
    plan = story.plan()
    assert [a.manifest["kind"] for stage in plan.stages for a in stage] == ["Pod"]  # type: ignore[union-attr]
    assert [a.manifest["kind"] for a in plan.exposure] == ["Service"]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, "ServicePending"),
        ({"owner_references": [], "deletion_timestamp": "2026-01-01"}, "ServicePending"),
        ({"labels": {}}, "NameTaken"),
        ({"labels": {}, "deletion_timestamp": "2026-01-01"}, "ServicePending"),
        ({"owner_references": []}, "NameTaken"),
    ],
    ids=["left behind", "another's, going", "another's", "another's labels, going", "no owner"],
)
def test_a_predecessor_s_service_is_waited_for(change: dict[str, Any], reason: str) -> None:
    story = started()
    assert story.exposure is not None
    (owner,) = story.exposure.metadata.owner_references
    earlier = {"owner_references": [msgspec.structs.replace(owner, uid="uid-of-earlier")]}
    meta = msgspec.structs.replace(story.exposure.metadata, **earlier | change)
    story.exposure = msgspec.structs.replace(story.exposure, metadata=meta)
    plan = story.plan(2)
    assert not actions_of(plan)
    assert story.condition("Exposed") == ("False", reason)
    assert exposed(story) == ("", "")
    assert told(plan) == (["NameTaken"] if reason == "NameTaken" else [])


def test_exposing_is_no_new_revision() -> None:
    plain, open_to_all = read_core_spec(), read_core_spec(transport=EXPOSED)
    assert compute_revision(plain) == compute_revision(open_to_all)
    other = read_core_spec(transport={**EXPOSED, "inputPort": 7001})
    assert compute_revision(other) != compute_revision(plain)


def test_a_cluster_shows_the_addresses_beside_those_inside() -> None:
    cores = [
        observed_core(
            status=EngineCoreStatus(
                input_address=f"tcp://10.0.0.{rank}:1",
                exposed_input_address=f"tcp://192.168.1.5:3000{rank}",
                exposed_output_address=f"tcp://192.168.1.5:3100{rank}",
            ),
            name=f"smollm-{rank}",
            cluster="smollm",
        )
        for rank in (0, 1)
    ]
    view = ClusterView(cluster=observed_cluster(cluster_spec(replicas=3)), cores=cores)
    status = plan_for_cluster(view).status
    assert isinstance(status, EngineClusterStatus)
    assert status.exposed_addresses is None
    spec = cluster_spec(replicas=3, transport=EXPOSED)
    view = ClusterView(cluster=observed_cluster(spec), cores=cores)
    status = plan_for_cluster(view).status
    assert isinstance(status, EngineClusterStatus)
    assert status.exposed_addresses == ClientAddresses(
        ["tcp://192.168.1.5:30000", "tcp://192.168.1.5:30001", ""],
        ["tcp://192.168.1.5:31000", "tcp://192.168.1.5:31001", ""],
    )
    assert status.client_addresses.input_address == ["tcp://10.0.0.0:1", "tcp://10.0.0.1:1", ""]


def test_a_cluster_is_degraded_by_another_s_service() -> None:
    story = started()
    assert story.exposure is not None
    meta = msgspec.structs.replace(story.exposure.metadata, owner_references=[])
    story.exposure = msgspec.structs.replace(story.exposure, metadata=meta)
    story.plan(2)
    core = observed_core(status=story.status, name="smollm-0", cluster="smollm")
    spec = cluster_spec(replicas=1, transport=EXPOSED)
    plan = plan_for_cluster(ClusterView(cluster=observed_cluster(spec), cores=[core]))
    assert condition_of(plan.status, "Degraded") == ("True", "NameTaken")
    assert "NameTaken" in told(plan)
    (event,) = [e for e in plan.events if e.reason == "NameTaken"]
    assert "Service smollm-0-exposed" in event.message


def test_a_change_of_the_service_wakes_its_engine() -> None:
    story = started()
    (key,) = keys_concerned(Change("Service", None, story.exposure), None)  # type: ignore[arg-type]
    assert (key.kind, key.name) == ("EngineCore", "smollm-0")


def test_a_node_s_new_address_wakes_its_engines_and_its_heartbeat_does_not() -> None:
    cache = Cache(lambda _: None)
    labelled = {"name": "smollm-0-1", "uid": "u", "labels": {"enginecore.dev/core": "smollm-0"}}
    cache.put("Pod", {"metadata": labelled, "spec": {"nodeName": "n1"}})
    bare, known = node()["n1"], node(addresses=NODE)["n1"]
    beat = msgspec.structs.replace(
        known, metadata=msgspec.structs.replace(known.metadata, resource_version="9")
    )
    (key,) = keys_concerned(Change("Node", bare, known), cache)
    assert (key.kind, key.name) == ("EngineCore", "smollm-0")
    assert list(keys_concerned(Change("Node", known, beat), cache)) == []
