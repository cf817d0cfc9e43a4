"""The Service by which clients outside the cluster reach an engine, and the addresses it gives."""

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from enginecore_operator.api import labels
from enginecore_operator.api.conditions import ConditionType, Reason, find_condition
from enginecore_operator.api.status import EngineCoreStatus
from enginecore_operator.api.v1alpha1 import EngineCoreSpec
from enginecore_operator.plan import names
from enginecore_operator.plan.actions import Action, Apply, Create, Delete, Event, ObjectRef
from enginecore_operator.plan.diff import first_difference
from enginecore_operator.plan.observed import (
    CoreView,
    ObjectMeta,
    ObservedNode,
    ObservedObject,
    ObservedPod,
)
from enginecore_operator.plan.rendering import owner_reference
from enginecore_operator.plan.verdicts import Verdict

NOT_EXPOSED: Final = "None"
_REACHABLE: Final = ("ExternalIP", "InternalIP")
"""Addresses of a node that a client outside may dial, the better one first."""


class Exposure(msgspec.Struct, frozen=True):
    """Where an engine is for clients outside; the verdict is None where none are to reach it."""

    input_address: str = ""
    output_address: str = ""
    verdict: Verdict | None = None


def build_exposure(owner: ObjectMeta, spec: EngineCoreSpec) -> dict[str, Any]:
    """Build the Service of one engine; `owner` is the EngineCore.

    As with the engines' names, an engine that is not Ready is in it, to tell clients its phase,
    and one that is replaced is not.
    """
    cluster = owner.controller_name(labels.CLUSTER_KIND)
    marks = {**names.common_labels(cluster or owner.name), labels.CORE: owner.name}
    if cluster:
        marks[labels.CLUSTER] = cluster
    transport = spec.transport
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": names.exposure_name(owner.name),
            "namespace": owner.namespace,
            "labels": {**marks, labels.COMPONENT: labels.ENGINE},
            "ownerReferences": [owner_reference(labels.CORE_KIND, owner)],
        },
        "spec": {
            "type": transport.expose,
            "ipFamilyPolicy": "PreferDualStack",
            "publishNotReadyAddresses": True,
            "selector": {labels.CORE: owner.name, labels.ADDRESSABLE: "true"},
            "ports": [
                {"name": name, "port": port, "targetPort": name, "protocol": "TCP"}
                for name, port in (
                    ("input", transport.input_port),
                    ("output", transport.output_port),
                )
            ],
        },
    }


def is_predecessors(core: ObjectMeta, there: ObjectMeta) -> bool:
    """Tell whether a Service or NetworkPolicy that is not this engine's goes without anybody's
    help: it is being deleted, or a deleted EngineCore of this name left it behind for the garbage
    collector.
    """
    if there.is_controlled_by(core.uid):
        return False
    if there.deletion_timestamp is not None:
        return True
    ours = {labels.APP_MANAGED_BY: labels.FIELD_MANAGER, labels.CORE: core.name}
    return (
        ours.items() <= there.labels.items()
        and there.controller_name(labels.CORE_KIND) == core.name
    )


def exposure_actions(view: CoreView, spec: EngineCoreSpec) -> tuple[Action, ...]:
    """Return what brings the Service to what the spec says; nothing for another's object."""
    meta, there = view.core.metadata, view.exposure
    if there is not None and not there.metadata.is_controlled_by(meta.uid):
        return ()
    if there is not None and there.metadata.deletion_timestamp is not None:
        return ()
    if spec.transport.expose == NOT_EXPOSED:
        return () if there is None else (Delete(_reference(there)),)
    manifest = build_exposure(meta, spec)
    if there is None:
        return (Create(manifest),)
    return (Apply(manifest),) if first_difference(manifest, there.raw) else ()


def exposure_events(view: CoreView, after: EngineCoreStatus) -> tuple[Event, ...]:
    """Tell once that another's Service keeps clients outside from an engine."""
    exposed = find_condition(after.conditions, ConditionType.EXPOSED)
    if exposed is None or exposed.reason != Reason.NAME_TAKEN:
        return ()
    before = find_condition(view.core.status.conditions, ConditionType.EXPOSED)
    told = before is not None and before.reason == exposed.reason
    return () if told else (Event(Reason.NAME_TAKEN, exposed.message, "Warning"),)


def find_exposure(view: CoreView, spec: EngineCoreSpec, pod: ObservedPod | None) -> Exposure:
    """Find the addresses for clients outside; `pod` is the one that serves, if there is one."""
    kind = spec.transport.expose
    refused = find_condition(view.core.status.conditions, ConditionType.EXPOSED)
    was_refused = refused is not None and refused.reason == Reason.API_REFUSED
    if refused is not None and was_refused and exposure_actions(view, spec):
        # It is tried again in this pass, and the Service's next state shows how that went.
        return _hidden(Verdict(False, Reason.API_REFUSED, refused.message))
    if kind == NOT_EXPOSED:
        return Exposure()
    name, there = names.exposure_name(view.core.metadata.name), view.exposure
    if there is not None and is_predecessors(view.core.metadata, there.metadata):
        text = f"Service {name} of an earlier engine of this name is going"
        return _hidden(Verdict(False, Reason.SERVICE_PENDING, text))
    if there is not None and not there.metadata.is_controlled_by(view.core.metadata.uid):
        text = f"Service {name} is not this engine's; delete it, or rename the engine or cluster"
        return _hidden(Verdict(False, Reason.NAME_TAKEN, text))
    if there is None or there.metadata.deletion_timestamp is not None:
        return _hidden(Verdict(False, Reason.SERVICE_PENDING, f"Service {name} is being made"))
    service = there.raw.get("spec", {})
    if service.get("type") != kind:
        return _hidden(
            Verdict(False, Reason.SERVICE_PENDING, f"Service {name} is becoming a {kind}")
        )
    if pod is None or pod.terminating or not pod.status.pod_ip:
        return _hidden(Verdict(False, Reason.POD_MISSING, "there is no pod with an address"))
    if kind == "NodePort":
        return _by_node(view.nodes.get(pod.spec.node_name), pod.spec.node_name, service)
    return _by_balancer(name, there, spec)


def _hidden(verdict: Verdict) -> Exposure:
    return Exposure(verdict=verdict)


def _by_node(node: ObservedNode | None, name: str, service: Mapping[str, Any]) -> Exposure:
    families = service.get("ipFamilies", ())
    host = _node_host(node, families)
    if not host:
        wanted = " or ".join(families) or "IP"
        text = f"node {name} has no {wanted} address of type {' or '.join(_REACHABLE)}"
        return _hidden(Verdict(False, Reason.NO_NODE_ADDRESS, text))
    ports = {port.get("name"): port.get("nodePort", 0) for port in service.get("ports", ())}
    return _found(host, ports.get("input", 0), ports.get("output", 0))


def _by_balancer(name: str, there: ObservedObject, spec: EngineCoreSpec) -> Exposure:
    balancer = there.raw.get("status", {}).get("loadBalancer", {})
    for entry in balancer.get("ingress", ()):
        host = entry.get("ip") or entry.get("hostname") or ""
        if host:
            return _found(host, spec.transport.input_port, spec.transport.output_port)
    text = f"the load balancer of Service {name} has no address yet"
    return _hidden(Verdict(False, Reason.LOAD_BALANCER_PENDING, text))


def _found(host: str, input_port: int, output_port: int) -> Exposure:
    if not input_port or not output_port:
        return _hidden(Verdict(False, Reason.SERVICE_PENDING, "the Service has no ports yet"))
    addresses = names.tcp_address(host, input_port), names.tcp_address(host, output_port)
    verdict = Verdict(True, Reason.ADDRESS_KNOWN, f"clients outside reach it at {host}")
    return Exposure(*addresses, verdict)


def _node_host(node: ObservedNode | None, families: Sequence[str]) -> str:
    """Return the address of a node to dial: of a family the Service has, ExternalIP first."""
    if node is None:
        return ""
    for kind in _REACHABLE:
        for entry in node.status.addresses:
            if entry.type == kind and (not families or _family(entry.address) in families):
                return entry.address
    return ""


def _family(address: str) -> str:
    try:
        return f"IPv{ipaddress.ip_address(address).version}"
    except ValueError:
        return ""


def _reference(service: ObservedObject) -> ObjectRef:
    meta = service.metadata
    return ObjectRef("Service", meta.namespace, meta.name, meta.uid)
