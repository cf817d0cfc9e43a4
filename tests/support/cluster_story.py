"""One EngineCluster told pass by pass, for tests of its decisions."""

from typing import Any

import msgspec

from enginecore_operator.api.conditions import Condition
from enginecore_operator.api.status import EngineClusterStatus, EngineCoreStatus
from enginecore_operator.plan.actions import Apply, Create, Delete, Plan
from enginecore_operator.plan.observed import ClusterView, ObjectMeta, ObservedCore, ObservedObject
from support.key_chest import KeyChest
from support.operator_objects import cluster_spec, condition_of, observed_cluster, plan_for_cluster


class ClusterStory:
    """One EngineCluster told pass by pass: what a plan makes is seen by the next one."""

    def __init__(self, **spec: Any) -> None:
        self.cluster = observed_cluster(cluster_spec(**spec))
        self.cores: dict[str, ObservedCore] = {}
        self.objects: dict[str, dict[str, ObservedObject]] = {
            "Service": {},
            "NetworkPolicy": {},
            "Deployment": {},
            "ConfigMap": {},
        }
        self.chest = KeyChest()
        self.pod_keys: frozenset[str] = frozenset()

    def plan(self, seconds: float = 0.0) -> Plan:
        view = ClusterView(
            cluster=self.cluster,
            cores=list(self.cores.values()),
            pod_keys=self.pod_keys,
            services=self.objects["Service"],
            policies=self.objects["NetworkPolicy"],
            deployments=self.objects["Deployment"],
            config_maps=self.objects["ConfigMap"],
        )
        allowed = self.objects["ConfigMap"].get("smollm-allowed-keys")
        plan = plan_for_cluster(view, seconds, chest=self.chest, allowed=allowed)
        assert isinstance(plan.status, EngineClusterStatus)
        self.cluster = msgspec.structs.replace(self.cluster, status=plan.status)
        for action in (action for stage in plan.stages for action in stage):
            match action:
                case Create() | Apply():
                    self.take(action.manifest)
                case Delete() if action.ref.kind == "EngineCore":
                    del self.cores[action.ref.name]
                case Delete():
                    del self.objects[action.ref.kind][action.ref.name]
        return plan

    def take(self, manifest: dict[str, Any]) -> None:
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        meta = {**manifest["metadata"], "uid": f"uid-{kind}-{name}"}
        if kind == "EngineCore":
            before = self.cores.get(name)
            changed = before is None or before.spec != manifest["spec"]
            generation = (before.metadata.generation if before else 0) + changed
            raw = {**manifest, "metadata": {**meta, "generation": generation}}
            core = msgspec.convert(raw, ObservedCore)
            status = before.status if before else EngineCoreStatus()
            self.cores[name] = msgspec.structs.replace(core, status=status)
        else:
            view = ObservedObject(msgspec.convert(meta, ObjectMeta), manifest)
            self.objects[kind][name] = view

    def ready(self, *ranks: int) -> None:
        """Let engines become Ready with the spec they have."""
        for rank in ranks:
            name = f"smollm-{rank}"
            core = self.cores[name]
            status = EngineCoreStatus(
                observed_generation=core.metadata.generation,
                input_address=f"tcp://10.0.0.{rank}:5557",
                output_address=f"tcp://10.0.0.{rank}:5558",
                server_key=core.spec.get("clusterKeys", {}).get("publicKey", ""),
                conditions=[Condition("Ready", "True", "PodReady")],
            )
            self.cores[name] = msgspec.structs.replace(core, status=status)

    def coordinator_at(self, ip: str) -> None:
        """Give the coordinator's Service an address."""
        service = self.objects["Service"]["smollm-coordinator"]
        raw = {**service.raw, "spec": {**service.raw["spec"], "clusterIP": ip}}
        self.objects["Service"]["smollm-coordinator"] = ObservedObject(service.metadata, raw)

    def change_spec(self, **spec: Any) -> None:
        meta = self.cluster.metadata
        self.cluster = msgspec.structs.replace(
            self.cluster,
            spec=cluster_spec(**spec),
            metadata=msgspec.structs.replace(meta, generation=meta.generation + 1),
        )

    @property
    def status(self) -> EngineClusterStatus:
        return self.cluster.status

    def says(self, rank: int, reason: str, message: str = "as it is", **status: Any) -> None:
        """Let an engine be not Ready, for this reason."""
        name = f"smollm-{rank}"
        core = self.cores[name]
        bad = [Condition("Ready", "False", reason, message)]
        found = msgspec.structs.replace(core.status, conditions=bad, **status)
        self.cores[name] = msgspec.structs.replace(core, status=found)

    def message(self, kind: str) -> str:
        return next(c.message for c in self.status.conditions if c.type == kind)

    def condition(self, kind: str) -> tuple[str, str]:
        return condition_of(self.status, kind)


def settled(replicas: int, **spec: Any) -> ClusterStory:
    """Return the story of a cluster whose engines are all Ready."""
    story = ClusterStory(replicas=replicas, **spec)
    story.plan()
    story.ready(*range(replicas))
    story.plan()
    return story
