"""Who may connect to engines and coordinator, as the operator's NetworkPolicies say."""

from typing import Any

import msgspec
import pytest

from enginecore_operator.kube.cache import Cache, Change
from enginecore_operator.plan.actions import Apply, Create, Delete, Plan
from enginecore_operator.plan.observed import CoreView, ObjectMeta, ObservedObject
from enginecore_operator.views import foreign_objects
from enginecore_operator.wakes import keys_concerned
from support.cluster_story import ClusterStory, settled
from support.operator_objects import (
    CoreStory,
    actions_of,
    created,
    observed_core,
    running,
    told,
)

Peers = dict[str, list[str]]
"""Port → who may connect to it."""

ENGINE_PODS = {"enginecore.dev/cluster": "smollm", "enginecore.dev/component": "engine"}
NAMES = {
    "namespaces client.enginecore.dev/lab, pods client.enginecore.dev/smollm": "let in",
    "pods client.enginecore.dev/smollm": "clients",
    "namespaces client.enginecore.dev/lab, pods client.enginecore.dev/smollm-0": "let in",
    "pods client.enginecore.dev/smollm-0": "clients",
    "namespaces kubernetes.io/metadata.name=system, pods enginecore.dev/component=operator": (
        "operator"
    ),
    "pods enginecore.dev/scraper": "scrapers",
    "namespaces enginecore.dev/scraper": "scrapers' namespaces",
    "pods enginecore.dev/cluster=smollm enginecore.dev/component=engine": "engines",
}
CLIENTS = ["clients", "let in"]
SCRAPERS = ["scrapers", "scrapers' namespaces"]
STATUS = ["operator", *SCRAPERS]
EVERYBODY = ["everybody"]
CLOSED = {"input": CLIENTS, "output": CLIENTS, "http": STATUS}
OPEN = {"input": EVERYBODY, "output": EVERYBODY, "http": STATUS}
COORDINATOR = {"report": ["engines"], "publish": CLIENTS, "http": SCRAPERS}
ON_NODES = {"podTemplate": {"spec": {"hostNetwork": True}}}
PORTS = {"inputPort": 6001, "outputPort": 6002, "httpPort": 6003}


def in_words(peer: dict[str, Any]) -> str:
    """Return who a peer is: a label that must be `true` by its key alone."""
    parts = []
    for field, kind in (("namespaceSelector", "namespaces"), ("podSelector", "pods")):
        if field in peer:
            marks = peer[field]["matchLabels"].items()
            parts.append(f"{kind} {' '.join(k if v == 'true' else f'{k}={v}' for k, v in marks)}")
    return NAMES[", ".join(parts)]


def admitted(policy: dict[str, Any]) -> Peers:
    found: Peers = {}
    for rule in policy["spec"]["ingress"]:
        peers = [in_words(peer) for peer in rule["from"]] if "from" in rule else EVERYBODY
        for port in rule["ports"]:
            assert port["protocol"] == "TCP"
            found[port["port"]] = peers
    return found


def policies(plan: Plan, kind: Any = Create) -> dict[str, dict[str, Any]]:
    """Return the NetworkPolicies that a plan makes, or applies, by name."""
    manifests = [action.manifest for action in actions_of(plan) if isinstance(action, kind)]
    return {m["metadata"]["name"]: m for m in manifests if m["kind"] == "NetworkPolicy"}


def deleted(plan: Plan) -> list[str]:
    references = [action.ref for action in actions_of(plan) if isinstance(action, Delete)]
    return [ref.name for ref in references if ref.kind == "NetworkPolicy"]


@pytest.mark.parametrize(
    ("spec", "engines", "coordinator"),
    [
        ({}, CLOSED, COORDINATOR),
        ({"transport": PORTS}, CLOSED, COORDINATOR),
        ({"transport": {"expose": "NodePort"}}, OPEN, COORDINATOR),
        ({"transport": {"expose": "LoadBalancer"}}, OPEN, COORDINATOR),
        (ON_NODES, OPEN, COORDINATOR | {"report": EVERYBODY}),
    ],
    ids=["plain", "other ports", "node port", "load balancer", "on the node's network"],
)
def test_who_may_connect_to_a_cluster(
    spec: dict[str, Any], engines: Peers, coordinator: Peers
) -> None:
    plan = ClusterStory(**spec).plan()
    found = policies(plan)
    assert {name: admitted(policy) for name, policy in found.items()} == {
        "smollm-engines": engines,
        "smollm-coordinator": coordinator,
    }
    for policy in found.values():
        (owner,) = policy["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == ("EngineCluster", "uid-smollm")
        assert policy["spec"]["policyTypes"] == ["Ingress"]
    kinds = [manifest["kind"] for manifest in created(plan)]
    assert kinds.index("NetworkPolicy") < kinds.index("EngineCore")


def test_policies_select_the_pods_they_are_for() -> None:
    story = ClusterStory()
    made = policies(story.plan())
    selected = {n: p["spec"]["podSelector"]["matchLabels"] for n, p in made.items()}
    assert selected["smollm-engines"] == ENGINE_PODS
    deployment = story.objects["Deployment"]["smollm-coordinator"].raw
    template = deployment["spec"]["template"]["metadata"]["labels"]
    assert selected["smollm-coordinator"].items() <= template.items()
    core = CoreStory()
    core.policy = None
    made = {manifest["kind"]: manifest for manifest in created(core.plan())}
    chosen = made["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"]
    assert chosen.items() <= made["Pod"]["metadata"]["labels"].items()


def test_engines_report_from_their_nodes_until_the_last_one_has_left() -> None:
    story = settled(2, **ON_NODES)
    story.change_spec(replicas=2, podTemplate={"spec": {"hostNetwork": False}})
    seen = []
    for rank in (1, 0):
        story.plan()
        policy = story.objects["NetworkPolicy"]["smollm-coordinator"].raw
        seen.append(admitted(policy)["report"])
        story.ready(rank)
    story.plan()
    seen.append(admitted(story.objects["NetworkPolicy"]["smollm-coordinator"].raw)["report"])
    assert seen == [EVERYBODY, EVERYBODY, ["engines"]]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, {"smollm-0-engine": CLOSED}),
        ({"transport": {"expose": "NodePort"}}, {"smollm-0-engine": OPEN}),
        (ON_NODES, {"smollm-0-engine": OPEN}),
        ({"transport": {"networkPolicy": "None"}}, {}),
    ],
    ids=["plain", "exposed", "on the node's network", "opted out"],
)
def test_who_may_connect_to_an_engine_of_no_cluster(
    spec: dict[str, Any], expected: dict[str, Peers]
) -> None:
    story = CoreStory(**spec)
    story.policy = None
    plan = story.plan()
    assert {n: admitted(policy) for n, policy in policies(plan).items()} == expected
    kinds = [manifest["kind"] for manifest in created(plan)]
    assert kinds.index("Pod") == len(expected), "there is a policy before there is a pod"
    story.pod = running(story.pod)
    story.plan(1)
    assert not policies(story.plan(2), Create | Apply)


def test_an_engine_of_a_cluster_has_no_policy_of_its_own() -> None:
    story = CoreStory()
    story.core = observed_core(cluster="smollm")
    story.policy = None
    assert [manifest["kind"] for manifest in created(story.plan())] == ["Pod"]


def test_a_change_of_the_spec_changes_policies_and_no_pod() -> None:
    story = settled(2)
    before = {name: core.metadata.labels for name, core in story.cores.items()}
    for transport, engines in (({"expose": "NodePort"}, OPEN), ({}, CLOSED)):
        story.change_spec(replicas=2, transport=transport)
        applied = policies(story.plan(), Apply)
        assert {n: admitted(policy) for n, policy in applied.items()} == {"smollm-engines": engines}
        story.ready(0, 1)
        story.plan()
        assert story.plan().stages == ()
    story.change_spec(replicas=2, transport={"networkPolicy": "None"})
    assert sorted(deleted(story.plan())) == ["smollm-coordinator", "smollm-engines"]
    assert {name: core.metadata.labels for name, core in story.cores.items()} == before
    story.ready(0, 1)
    story.plan()
    assert story.plan().stages == ()
    story.change_spec(replicas=2)
    assert sorted(policies(story.plan())) == ["smollm-coordinator", "smollm-engines"]


EDITS = {
    "a rule is gone": lambda spec: {**spec, "ingress": spec["ingress"][1:]},
    "a rule admits everybody": lambda spec: {
        **spec,
        "ingress": [{"ports": spec["ingress"][0]["ports"]}, *spec["ingress"][1:]],
    },
    "a rule has another peer": lambda spec: {
        **spec,
        "ingress": [
            {**rule, "from": [*rule["from"], {"podSelector": {}}]} for rule in spec["ingress"]
        ],
    },
    "pods going out are limited": lambda spec: {**spec, "egress": [{}]},
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_policy_is_brought_back(edit: str) -> None:
    story = settled(1)
    there = story.objects["NetworkPolicy"]["smollm-engines"]
    raw = {**there.raw, "spec": EDITS[edit](there.raw["spec"])}
    story.objects["NetworkPolicy"]["smollm-engines"] = ObservedObject(there.metadata, raw)
    assert list(policies(story.plan(), Apply)) == ["smollm-engines"]


def edited(there: ObservedObject | None, **changes: Any) -> ObservedObject:
    assert there is not None
    return msgspec.structs.replace(
        there, metadata=msgspec.structs.replace(there.metadata, **changes)
    )


def test_a_policy_that_is_being_deleted_is_waited_for() -> None:
    story = CoreStory()
    story.plan()
    story.policy = edited(story.policy, deletion_timestamp="2026-01-01")
    story.change_spec(transport={"expose": "NodePort"})
    assert not policies(story.plan(1), Create | Apply)
    story.policy = None
    assert list(policies(story.plan(2))) == ["smollm-0-engine"]


def test_an_engine_does_not_start_behind_another_s_policy() -> None:
    story = CoreStory()
    story.policy = edited(story.policy, owner_references=[])
    plan = story.plan()
    assert not actions_of(plan)
    assert story.condition("Ready") == ("False", "NameTaken")
    assert told(plan) == ["NameTaken"]
    assert foreign_objects(view_of(story)) == [("NetworkPolicy", "smollm-0-engine")]
    story.change_spec(transport={"networkPolicy": "None"})
    assert [manifest["kind"] for manifest in created(story.plan(1))] == ["Pod"]
    assert story.policy is not None
    assert foreign_objects(view_of(story)) == []


def test_behind_a_predecessor_s_policy_an_engine_starts() -> None:
    story = CoreStory()
    owner = msgspec.structs.replace(story.policy.metadata.owner_references[0], uid="uid-before")  # type: ignore[union-attr]
    story.policy = edited(story.policy, owner_references=[owner])
    assert [manifest["kind"] for manifest in created(story.plan())] == ["Pod"]
    story.policy = None
    assert list(policies(story.plan(1))) == ["smollm-0-engine"]


def view_of(story: CoreStory) -> CoreView:
    return CoreView(core=story.core, policy=story.policy)


def test_whose_pass_a_change_of_a_policy_wakes() -> None:
    cluster, core = ClusterStory(), CoreStory()
    core.policy = None
    made = [*policies(cluster.plan()).values(), *policies(core.plan()).values()]
    cache = Cache(lambda _: None)
    woken = []
    for manifest in made:
        meta = msgspec.convert(manifest["metadata"], ObjectMeta)
        change = Change("NetworkPolicy", None, ObservedObject(meta, manifest))
        woken += [(key.kind, key.name) for key in keys_concerned(change, cache)]
    assert woken == [("EngineCluster", "smollm")] * 2 + [("EngineCore", "smollm-0")]
