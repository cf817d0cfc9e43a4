"""Who may connect to an engine's pods, and to a cluster's coordinator: NetworkPolicies.

Ports are given by their names in the pods: engines of an earlier spec, which a rollout has not
reached, stay reachable on the ports that they have.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from enginecore_operator.api import labels
from enginecore_operator.api.v1alpha1 import EngineClusterSpec, EngineCoreSpec, EngineTemplate
from enginecore_operator.plan import names
from enginecore_operator.plan.actions import Action, Apply, Create, Delete, ObjectRef
from enginecore_operator.plan.diff import first_difference
from enginecore_operator.plan.exposure import NOT_EXPOSED, is_predecessors
from enginecore_operator.plan.observed import (
    ClusterView,
    CoreView,
    ObjectMeta,
    ObservedCore,
    ObservedObject,
)
from enginecore_operator.plan.rendering import owner_reference

KIND: Final = "NetworkPolicy"
UNLIMITED: Final = "None"

Peer = dict[str, Any]


class PolicyWork(msgspec.Struct, frozen=True):
    """What brings policies to their wanted state, and those whose names are another's."""

    actions: tuple[Action, ...] = ()
    taken: tuple[str, ...] = ()


def work_on_cluster(
    view: ClusterView, spec: EngineClusterSpec, operator_namespace: str
) -> PolicyWork:
    """Decide what to do about the policies of an EngineCluster."""
    meta = view.cluster.metadata
    on_nodes = _on_nodes(spec) or any(
        _was_put_on_nodes(core) for core in view.cores if core.metadata.is_controlled_by(meta.uid)
    )
    wanted = build_cluster_policies(meta, spec, operator_namespace, on_nodes=on_nodes)
    actions: list[Action] = []
    taken = []
    for manifest in wanted:
        name = manifest["metadata"]["name"]
        there = view.policies.get(name)
        if not is_limited(spec):
            actions += _remove(meta.uid, there)
        elif there is not None and not there.metadata.is_controlled_by(meta.uid):
            taken.append(f"{KIND} {name}")
        else:
            actions += _settle(manifest, there)
    return PolicyWork(tuple(actions), tuple(taken))


def work_on_core(view: CoreView, spec: EngineCoreSpec, operator_namespace: str) -> PolicyWork:
    """Decide what to do about an EngineCore's own policy: one of a cluster has none."""
    meta, there = view.core.metadata, view.policy
    if meta.controller_name(labels.CLUSTER_KIND) or not is_limited(spec):
        return PolicyWork(_remove(meta.uid, there))
    if there is None or there.metadata.is_controlled_by(meta.uid):
        return PolicyWork(_settle(build_core_policy(meta, spec, operator_namespace), there))
    if is_predecessors(meta, there.metadata):
        # It holds for this engine's pods, too, until it is gone, of which the watch tells.
        return PolicyWork()
    return PolicyWork(taken=(f"{KIND} {there.metadata.name}",))


def is_limited(spec: EngineTemplate) -> bool:
    """Tell whether policies limit who may connect."""
    return spec.transport.network_policy != UNLIMITED


def build_cluster_policies(
    owner: ObjectMeta, spec: EngineClusterSpec, operator_namespace: str, *, on_nodes: bool
) -> Sequence[dict[str, Any]]:
    """Build the policies of an EngineCluster: of its engines, some of which may report from the
    network of their nodes, and of its coordinator.
    """
    engines = {labels.CLUSTER: owner.name, labels.COMPONENT: labels.ENGINE}
    coordinator = {labels.CLUSTER: owner.name, labels.COMPONENT: labels.COORDINATOR}
    # Pods on their node's network send from its address, which no selector of pods finds.
    reporters = [] if on_nodes else [{"podSelector": {"matchLabels": engines}}]
    return (
        _policy(
            names.engines_policy_name(owner.name),
            (labels.CLUSTER_KIND, owner),
            {**names.common_labels(owner.name), **engines},
            engines,
            _engine_rules(owner, spec, operator_namespace),
        ),
        _policy(
            names.coordinator_name(owner.name),
            (labels.CLUSTER_KIND, owner),
            {**names.common_labels(owner.name), **coordinator},
            coordinator,
            [
                _rule(reporters, "report"),
                _rule(_clients(owner), "publish"),
                _rule(_scrapers(), "http"),
            ],
        ),
    )


def build_core_policy(
    owner: ObjectMeta, spec: EngineCoreSpec, operator_namespace: str
) -> dict[str, Any]:
    """Build the policy of an EngineCore that belongs to no cluster."""
    selected = {labels.CORE: owner.name, labels.COMPONENT: labels.ENGINE}
    return _policy(
        names.core_policy_name(owner.name),
        (labels.CORE_KIND, owner),
        {**names.common_labels(owner.name), **selected},
        selected,
        _engine_rules(owner, spec, operator_namespace),
    )


def _engine_rules(
    owner: ObjectMeta, spec: EngineTemplate, operator_namespace: str
) -> list[dict[str, Any]]:
    outside = spec.transport.expose != NOT_EXPOSED or _on_nodes(spec)
    operator = {
        "namespaceSelector": {"matchLabels": {labels.NAMESPACE_NAME: operator_namespace}},
        "podSelector": {"matchLabels": {labels.COMPONENT: labels.OPERATOR}},
    }
    return [
        _rule([] if outside else _clients(owner), "input", "output"),
        _rule([operator, *_scrapers()], "http"),
    ]


def _on_nodes(spec: EngineTemplate) -> bool:
    return spec.pod_template.spec.host_network


def _was_put_on_nodes(core: ObservedCore) -> bool:
    """Tell whether an engine uses its node's network, be it until its turn comes."""
    template = core.spec.get("podTemplate") or {}
    return bool((template.get("spec") or {}).get("hostNetwork"))


def _clients(owner: ObjectMeta) -> list[Peer]:
    """Select the clients of a cluster or engine: here, and in namespaces that are let in."""
    pods = {"podSelector": {"matchLabels": {f"{labels.CLIENT_PREFIX}{owner.name}": "true"}}}
    let_in = {"matchLabels": {f"{labels.CLIENT_PREFIX}{owner.namespace}": "true"}}
    return [pods, {"namespaceSelector": let_in, **pods}]


def _scrapers() -> list[Peer]:
    """Select who reads metrics: labelled pods here, and every pod of a labelled namespace."""
    marked = {"matchLabels": {labels.SCRAPER: "true"}}
    return [{"podSelector": marked}, {"namespaceSelector": marked}]


def _rule(peers: Sequence[Peer], *ports: str) -> dict[str, Any]:
    """Build one rule; without peers it admits everybody."""
    rule: dict[str, Any] = {"ports": [{"protocol": "TCP", "port": port} for port in ports]}
    return {**rule, "from": list(peers)} if peers else rule


def _policy(
    name: str,
    owner: tuple[str, ObjectMeta],
    marks: Mapping[str, str],
    selected: Mapping[str, str],
    rules: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    kind, meta = owner
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": KIND,
        "metadata": {
            "name": name,
            "namespace": meta.namespace,
            "labels": dict(marks),
            "ownerReferences": [owner_reference(kind, meta)],
        },
        "spec": {
            "podSelector": {"matchLabels": dict(selected)},
            "policyTypes": ["Ingress"],
            "ingress": list(rules),
        },
    }


def _settle(manifest: dict[str, Any], there: ObservedObject | None) -> tuple[Action, ...]:
    if there is None:
        return (Create(manifest),)
    if there.metadata.deletion_timestamp is not None:
        return ()
    # In both directions: a rule that lacks `from` admits everybody.
    differs = first_difference(manifest, there.raw) or first_difference(
        there.raw.get("spec", {}), manifest["spec"]
    )
    return (Apply(manifest),) if differs else ()


def _remove(uid: str, there: ObservedObject | None) -> tuple[Action, ...]:
    if there is None or not there.metadata.is_controlled_by(uid):
        return ()
    meta = there.metadata
    if meta.deletion_timestamp is not None:
        return ()
    return (Delete(ObjectRef(KIND, meta.namespace, meta.name, meta.uid)),)
