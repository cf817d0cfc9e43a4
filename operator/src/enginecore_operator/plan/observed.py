"""What the operator sees of the cluster, reduced to the fields it decides by."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from enginecore_curve.pair import KeyPair
from enginecore_operator.api import labels
from enginecore_operator.api.conditions import Condition
from enginecore_operator.api.status import EngineClusterStatus, EngineCoreStatus, KeysStatus
from enginecore_operator.plan.actions import Event
from enginecore_wire.contract import ServerStatus


class _View(msgspec.Struct, frozen=True, rename="camel"):
    """Base of views of API objects: unknown fields are dropped."""


class OwnerReference(_View, frozen=True):
    """One owner of an object."""

    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class ObjectMeta(_View, frozen=True):
    """The metadata of an object."""

    name: str
    uid: str = ""
    namespace: str = ""
    generation: int = 0
    resource_version: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: list[OwnerReference] = []
    deletion_timestamp: str | None = None

    def is_controlled_by(self, uid: str) -> bool:
        """Tell whether the object with this uid is the controller of this one."""
        return any(owner.controller and owner.uid == uid for owner in self.owner_references)

    def controller_name(self, kind: str) -> str:
        """Return the name of the controller if it is of this kind, else an empty string."""
        return next((o.name for o in self.owner_references if o.controller and o.kind == kind), "")


class Terminated(_View, frozen=True):
    """How a container ended."""

    exit_code: int = 0
    reason: str = ""
    message: str = ""


class Waiting(_View, frozen=True):
    """Why a container does not run yet."""

    reason: str = ""
    message: str = ""


class ContainerState(_View, frozen=True):
    """State of a container."""

    terminated: Terminated | None = None
    waiting: Waiting | None = None


class ContainerStatus(_View, frozen=True):
    """Status of a container."""

    name: str
    state: ContainerState = ContainerState()


class PodCondition(_View, frozen=True):
    """One condition of a pod."""

    type: str
    status: str = ""
    reason: str = ""
    message: str = ""


class PodSpec(_View, frozen=True):
    """The part of a pod's spec that others write."""

    node_name: str = ""


class PodStatus(_View, frozen=True, rename={"pod_ip": "podIP"}):
    """Status of a pod."""

    phase: str = ""
    pod_ip: str = ""
    reason: str = ""
    message: str = ""
    start_time: str = msgspec.field(default="", name="startTime")
    conditions: list[PodCondition] = []
    init_container_statuses: list[ContainerStatus] = msgspec.field(
        default_factory=list, name="initContainerStatuses"
    )
    container_statuses: list[ContainerStatus] = msgspec.field(
        default_factory=list, name="containerStatuses"
    )


class ObservedPod(_View, frozen=True):
    """A pod of an EngineCore."""

    metadata: ObjectMeta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def epoch(self) -> int:
        """The epoch from the label; 0 where there is none."""
        text = self.metadata.labels.get(labels.EPOCH, "")
        return int(text) if text.isdecimal() else 0

    @property
    def revision(self) -> str:
        """Revision of the spec the pod was made from."""
        return self.metadata.labels.get(labels.REVISION, "")

    @property
    def terminating(self) -> bool:
        """Whether somebody deleted it and it has not ended yet."""
        return self.metadata.deletion_timestamp is not None

    @property
    def ready(self) -> bool:
        """Whether its condition Ready is True and it is to stay."""
        return not self.terminating and any(
            c.type == "Ready" and c.status == "True" for c in self.status.conditions
        )

    @property
    def engine_end(self) -> Terminated | None:
        """How the engine's container ended; None while it runs or waits."""
        for container in self.status.container_statuses:
            if container.name == labels.ENGINE_CONTAINER:
                return container.state.terminated
        return None

    @property
    def failed_init(self) -> ContainerStatus | None:
        """The first init container that failed, for which the engine's was never started."""
        for container in self.status.init_container_statuses:
            end = container.state.terminated
            if end is not None and end.exit_code:
                return container
        return None

    @property
    def ended(self) -> bool:
        """Whether the engine process is over: in a pod with sidecars, before the pod is."""
        return self.status.phase in ("Failed", "Succeeded") or self.engine_end is not None

    def condition(self, kind: str) -> PodCondition | None:
        """Return the condition of this type, or None."""
        return next((c for c in self.status.conditions if c.type == kind), None)


class NodeAddress(_View, frozen=True):
    """One address of a node."""

    type: str = ""
    address: str = ""


class NodeStatus(_View, frozen=True):
    """Status of a node."""

    addresses: list[NodeAddress] = []


class ObservedNode(_View, frozen=True):
    """A node."""

    metadata: ObjectMeta
    status: NodeStatus = NodeStatus()

    @property
    def simulated(self) -> bool:
        """Whether its pods have no process behind them."""
        return labels.KWOK_NODE in self.metadata.annotations


class ObservedCore(_View, frozen=True):
    """An EngineCore; the spec stays as written until it is checked."""

    metadata: ObjectMeta
    spec: dict[str, Any]
    status: EngineCoreStatus = EngineCoreStatus()

    @property
    def caught_up(self) -> bool:
        """Whether the status speaks of the present spec."""
        return self.status.observed_generation == self.metadata.generation


class ObservedCluster(_View, frozen=True):
    """An EngineCluster; the spec stays as written until it is checked."""

    metadata: ObjectMeta
    spec: dict[str, Any]
    status: EngineClusterStatus = EngineClusterStatus()


class ObservedObject(msgspec.Struct, frozen=True):
    """A Service, NetworkPolicy, ConfigMap or Deployment: compared as a whole."""

    metadata: ObjectMeta
    raw: dict[str, Any]


class ObservedSecret(msgspec.Struct, frozen=True):
    """A Secret with keys: the pair of each entry that reads as a secret key."""

    metadata: ObjectMeta
    pairs: Mapping[str, KeyPair] = {}


class KeysView(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of an EngineCluster, or of an EngineCore of its own.

    `secrets` are looked up by name, whoever owns them; `allowed` is the ConfigMap of those who are
    let in, likewise. `state` is how far another generation is, as of this pass, and lasts for
    `rest` seconds at least; `news` tell what this pass did about the Secrets.
    """

    state: KeysStatus
    secrets: Mapping[str, ObservedSecret] = {}
    allowed: ObservedObject | None = None
    rest: float | None = None
    news: tuple[Event, ...] = ()


class FactsReading(msgspec.Struct, frozen=True):
    """The latest answer, or failure, of a pod's status page. `at` is in seconds, monotonic."""

    pod_uid: str
    pod_ready: bool
    at: float
    status: ServerStatus | None = None
    error: str = ""


class CoreView(msgspec.Struct, frozen=True, kw_only=True):
    """All that bears on one EngineCore. `pods` are those that carry its label, of any owner;
    `exposure` and `policy` are the Service and the NetworkPolicy on the names of its own, whoever
    owns them; `warnings` are what kubelets report of pods that do not start, by the pods' uid;
    `keys_refused` is what the API server said where `keys` could not be had.
    """

    core: ObservedCore
    pods: Sequence[ObservedPod] = ()
    exposure: ObservedObject | None = None
    policy: ObservedObject | None = None
    nodes: Mapping[str, ObservedNode] = {}
    warnings: Mapping[str, str] = {}
    keys: KeysView | None = None
    keys_refused: str = ""
    reading: FactsReading | None = None


class ClusterView(msgspec.Struct, frozen=True, kw_only=True):
    """All that bears on one EngineCluster; children are looked up by name, whoever owns them.

    `pod_keys` are the public keys of its engines' pods, also of those that are being deleted.
    """

    cluster: ObservedCluster
    cores: Sequence[ObservedCore] = ()
    pod_keys: frozenset[str] = frozenset()
    services: Mapping[str, ObservedObject] = {}
    policies: Mapping[str, ObservedObject] = {}
    deployments: Mapping[str, ObservedObject] = {}
    config_maps: Mapping[str, ObservedObject] = {}
    keys: KeysView | None = None


Conditions = Sequence[Condition]
