"""Objects as the API server shows them to the operator, for tests of its decisions."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from enginecore_operator.api import labels
from enginecore_operator.api.status import EngineClusterStatus, EngineCoreStatus
from enginecore_operator.api.v1alpha1 import EngineCoreSpec
from enginecore_operator.plan.actions import Action, Apply, Create, Delete, Patch, Plan
from enginecore_operator.plan.cluster_plan import plan_cluster
from enginecore_operator.plan.core_plan import plan_core
from enginecore_operator.plan.keys import cluster_holder, core_holder
from enginecore_operator.plan.network_policy import build_core_policy
from enginecore_operator.plan.observed import (
    ClusterView,
    CoreView,
    FactsReading,
    ObjectMeta,
    ObservedCluster,
    ObservedCore,
    ObservedNode,
    ObservedObject,
    ObservedPod,
)
from enginecore_operator.plan.rendering import Rendering
from support.key_chest import KeyChest

NAMESPACE = "lab"
RENDERING = Rendering(
    torch_image="engine:1",
    vllm_image="vllm:1",
    server_image="server:1",
    coordinator_image="operator:1",
    operator_namespace="system",
)
T0 = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


def at(seconds: float) -> datetime:
    """Return a moment after T0."""
    return T0 + timedelta(seconds=seconds)


def core_spec(**changes: Any) -> dict[str, Any]:
    """Return the spec of an EngineCore; without CURVE, unless the change says so."""
    return _plain({"model": {"name": "tiny"}, "rank": 0, **changes})


def cluster_spec(**changes: Any) -> dict[str, Any]:
    """Return the spec of an EngineCluster; without CURVE, unless the change says so."""
    return _plain({"model": {"name": "tiny"}, "replicas": 2, **changes})


def _plain(spec: dict[str, Any]) -> dict[str, Any]:
    return {**spec, "transport": {"security": "None", **spec.get("transport", {})}}


def read_core_spec(**changes: Any) -> EngineCoreSpec:
    """Return the typed spec of an EngineCore."""
    return msgspec.convert(core_spec(**changes), EngineCoreSpec)


def owned_by(kind: str, name: str, uid: str) -> list[dict[str, Any]]:
    """Return ownerReferences with one controller."""
    return [{"kind": kind, "name": name, "uid": uid, "controller": True}]


def pod_from(manifest: dict[str, Any], status: dict[str, Any] | None = None) -> ObservedPod:
    """Return a pod as it would be seen after this manifest was created."""
    raw = {
        **manifest,
        "metadata": {**manifest["metadata"], "uid": f"uid-{manifest['metadata']['name']}"},
        "status": status or {"phase": "Pending"},
    }
    return msgspec.convert(raw, ObservedPod)


def on_node(pod: ObservedPod, node: str = "n1") -> ObservedPod:
    """Bind a pod to a node."""
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=node))


def with_status(pod: ObservedPod, **status: Any) -> ObservedPod:
    """Give a pod a status, in the API's words."""
    return msgspec.structs.replace(pod, status=msgspec.convert(status, type(pod.status)))


def running(pod: ObservedPod, *, ip: str = "10.0.0.1", ready: bool = True) -> ObservedPod:
    """Let a pod run on node n1."""
    condition = {"type": "Ready", "status": "True" if ready else "False"}
    return with_status(on_node(pod), phase="Running", podIP=ip, conditions=[condition])


def failed(pod: ObservedPod, *, log: str = "out of luck", code: int = 1) -> ObservedPod:
    """Let the engine of a pod end."""
    end = {"terminated": {"exitCode": code, "reason": "Error", "message": log}}
    return with_status(
        on_node(pod),
        phase="Failed" if code else "Succeeded",
        containerStatuses=[{"name": "engine", "state": end}],
    )


def deleted(pod: ObservedPod) -> ObservedPod:
    """Let somebody delete a pod that takes its time to end."""
    meta = msgspec.structs.replace(pod.metadata, deletion_timestamp="2026-01-01T12:00:00Z")
    return msgspec.structs.replace(pod, metadata=meta)


def without_address(pod: ObservedPod, name: str) -> ObservedPod:
    """Take the label by which a Service finds a pod from the pod of this name."""
    if pod.metadata.name != name:
        return pod
    kept = {k: v for k, v in pod.metadata.labels.items() if k != labels.ADDRESSABLE}
    meta = msgspec.structs.replace(pod.metadata, labels=kept)
    return msgspec.structs.replace(pod, metadata=meta)


def node(
    name: str = "n1", *, simulated: bool = False, addresses: Sequence[tuple[str, str]] = ()
) -> dict[str, ObservedNode]:
    """Return one node by name; `addresses` are pairs of type and address."""
    annotations = {labels.KWOK_NODE: "fake"} if simulated else {}
    raw = {
        "metadata": {"name": name, "annotations": annotations},
        "status": {"addresses": [{"type": kind, "address": ip} for kind, ip in addresses]},
    }
    return {name: msgspec.convert(raw, ObservedNode)}


def object_from(manifest: dict[str, Any]) -> ObservedObject:
    """Return an object as it would be seen after this manifest was created."""
    meta = manifest["metadata"]
    raw = {**manifest, "metadata": {**meta, "uid": f"uid-{meta['name']}"}}
    return ObservedObject(msgspec.convert(raw["metadata"], ObjectMeta), raw)


def service_from(
    manifest: dict[str, Any],
    *,
    families: Sequence[str] = ("IPv4",),
    ingress: Sequence[dict[str, str]] = (),
) -> ObservedObject:
    """Return a Service as the API server shows it, with node ports from 30001 on."""
    ports = [{**port, "nodePort": 30001 + i} for i, port in enumerate(manifest["spec"]["ports"])]
    return object_from(
        {
            **manifest,
            "spec": {**manifest["spec"], "ports": ports, "ipFamilies": list(families)},
            "status": {"loadBalancer": {"ingress": list(ingress)}},
        }
    )


def observed_core(
    spec: dict[str, Any] | None = None,
    status: EngineCoreStatus | None = None,
    *,
    name: str = "smollm-0",
    cluster: str = "",
    generation: int = 1,
) -> ObservedCore:
    """Return an EngineCore as seen, of a cluster or applied by hand."""
    raw = {
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": f"uid-{name}",
            "generation": generation,
            "labels": {labels.CLUSTER: cluster} if cluster else {},
            "ownerReferences": owned_by("EngineCluster", cluster, f"uid-{cluster}")
            if cluster
            else [],
        },
        "spec": spec or core_spec(),
    }
    core = msgspec.convert(raw, ObservedCore)
    return msgspec.structs.replace(core, status=status or EngineCoreStatus())


def observed_cluster(
    spec: dict[str, Any] | None = None,
    status: EngineClusterStatus | None = None,
    *,
    name: str = "smollm",
    generation: int = 1,
) -> ObservedCluster:
    """Return an EngineCluster as seen."""
    raw = {
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": f"uid-{name}",
            "generation": generation,
        },
        "spec": spec or cluster_spec(),
    }
    cluster = msgspec.convert(raw, ObservedCluster)
    return msgspec.structs.replace(cluster, status=status or EngineClusterStatus())


class CoreStory:
    """One EngineCore told pass by pass: each pass sees what the one before left.

    Its NetworkPolicy is there, as the first pass would have left it.
    """

    def __init__(self, **spec: Any) -> None:
        self.core = observed_core(core_spec(**spec))
        self.pods: list[ObservedPod] = []
        self.exposure: ObservedObject | None = None
        self.policy: ObservedObject | None = object_from(
            build_core_policy(
                self.core.metadata, read_core_spec(**spec), RENDERING.operator_namespace
            )
        )
        self.nodes = node()
        self.reading: FactsReading | None = None
        self.warnings: dict[str, str] = {}
        self.chest = KeyChest()
        self.allowed: ObservedObject | None = None

    def plan(self, seconds: float = 0.0) -> Plan:
        """Make one pass and take over what it does."""
        view = CoreView(
            core=self.core,
            pods=self.pods,
            exposure=self.exposure,
            policy=self.policy,
            nodes=self.nodes,
            warnings=self.warnings,
            reading=self.reading,
        )
        holder = core_holder(view)
        if holder is not None and self.chest.refusal:
            view = msgspec.structs.replace(view, keys_refused=self.chest.refusal)
        elif holder is not None:
            keys = self.chest.make(holder, self.allowed, at(seconds))
            view = msgspec.structs.replace(view, keys=keys)
        plan = plan_core(view, RENDERING, at(seconds))
        assert isinstance(plan.status, EngineCoreStatus)
        self.core = msgspec.structs.replace(self.core, status=plan.status)
        for action in actions_of(plan):
            if isinstance(action, Patch):
                self.pods = [without_address(pod, action.ref.name) for pod in self.pods]
            elif isinstance(action, Create | Apply) and action.manifest["kind"] == "Service":
                self.exposure = service_from(action.manifest)
            elif isinstance(action, Create | Apply) and action.manifest["kind"] == "ConfigMap":
                meta = msgspec.convert(action.manifest["metadata"], ObjectMeta)
                self.allowed = ObservedObject(meta, action.manifest)
            elif isinstance(action, Delete) and action.ref.kind == "Service":
                self.exposure = None
            elif isinstance(action, Create | Apply) and action.manifest["kind"] == "NetworkPolicy":
                self.policy = object_from(action.manifest)
            elif isinstance(action, Delete) and action.ref.kind == "NetworkPolicy":
                self.policy = None
            elif isinstance(action, Create):
                self.pods.append(pod_from(action.manifest))
        return plan

    @property
    def status(self) -> EngineCoreStatus:
        """The status as written last."""
        return self.core.status

    @property
    def pod(self) -> ObservedPod:
        """The newest pod."""
        return self.pods[-1]

    @pod.setter
    def pod(self, pod: ObservedPod) -> None:
        self.pods[-1] = pod

    def change_spec(self, **spec: Any) -> None:
        """Let a user change the spec."""
        meta = self.core.metadata
        self.core = msgspec.structs.replace(
            self.core,
            spec=core_spec(**spec),
            metadata=msgspec.structs.replace(meta, generation=meta.generation + 1),
        )

    def condition(self, kind: str) -> tuple[str, str]:
        """Return status and reason of a condition."""
        return condition_of(self.status, kind)


def plan_for_cluster(
    view: ClusterView,
    seconds: float = 0.0,
    *,
    chest: KeyChest | None = None,
    allowed: ObservedObject | None = None,
) -> Plan:
    """Make one pass over a cluster, with the Secrets of a chest where it needs keys."""
    holder, chest = cluster_holder(view), chest or KeyChest()
    if holder is not None and not chest.refusal:
        keys = chest.make(holder, allowed, at(seconds))
        view = msgspec.structs.replace(view, keys=keys)
    return plan_cluster(view, RENDERING, at(seconds))


def created(plan: Plan) -> list[dict[str, Any]]:
    """Return the manifests a plan creates."""
    return [a.manifest for a in actions_of(plan) if isinstance(a, Create)]


def actions_of(plan: Plan) -> list[Action]:
    """Return all that a plan does."""
    return [*(action for stage in plan.stages for action in stage), *plan.exposure]


def condition_of(status: Any, kind: str) -> tuple[str, str]:
    """Return status and reason of a condition."""
    return next((c.status, c.reason) for c in status.conditions if c.type == kind)


def told(plan: Plan) -> list[str]:
    """Return the reasons of a plan's events."""
    return [event.reason.value for event in plan.events]


def started(**spec: object) -> CoreStory:
    """Return the story of an engine whose first pod is Ready."""
    story = CoreStory(**spec)
    story.plan()
    story.pod = running(story.pod)
    story.plan(1)
    return story
