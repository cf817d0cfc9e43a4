"""Spec and status of EngineCluster and EngineCore, version v1alpha1.

The CRDs are generated from these structs (crdgen): descriptions, ranges and defaults come from
the annotations, rules over several fields from `rules` (CEL). A field exists only once it works.
"""

from typing import Annotated, ClassVar, Final

from msgspec import Meta

from enginecore_operator.api import schema
from enginecore_operator.api.devices import Accelerator, Resources
from enginecore_operator.api.lifecycle import MAX_REPLICAS, Drain, Liveness, Restart, Rollout
from enginecore_operator.api.limits import Limits
from enginecore_operator.api.model import Model
from enginecore_operator.api.podtemplate import PodTemplate
from enginecore_operator.api.runtime import Parallelism, Runtime
from enginecore_operator.api.schema import Rule, Spec
from enginecore_operator.api.transport import ClusterKeys, Keys, Transport
from enginecore_wire.public_keys import KEY_PATTERN

COORDINATOR_REQUESTS: Final = {"cpu": "20m", "memory": "64Mi"}
"""What a coordinator requests of what its spec neither requests nor limits."""


class Coordinator(Spec, frozen=True):
    """The process that collects engine load and publishes it to clients."""

    image: Annotated[
        str, Meta(max_length=1024, description="Image; empty: the operator's default.")
    ] = ""
    resources: Annotated[
        Resources,
        Meta(
            description="Requests and limits; without them it requests "
            f"{COORDINATOR_REQUESTS['cpu']} of cpu and {COORDINATOR_REQUESTS['memory']} of memory."
        ),
    ] = Resources()


ACCELERATOR: Final = (
    "Devices per engine. Left out, each engine asks for as many nvidia.com/gpu as it computes on, "
    "one unless parallelism says more, and waits for a node that has them; count 0 is for CPU only."
)


class EngineTemplate(Spec, frozen=True, kw_only=True):
    """What an EngineCluster and an EngineCore have in common: everything about one engine."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.runtime.type == 'vllm' || "
            "(self.parallelism.tensor == 1 && self.parallelism.pipeline == 1)",
            "only runtime.type vllm takes it; give a custom engine its own arguments",
            ".parallelism",
            lambda spec: spec.runtime.type == "vllm" or spec.parallelism.devices == 1,
        ),
        Rule(
            "!has(self.accelerator.count) || self.accelerator.count == 0 || "
            "self.accelerator.count >= self.parallelism.tensor * self.parallelism.pipeline",
            "fewer than parallelism.tensor times parallelism.pipeline; set it to that product, or "
            "take a stored value away: kubectl patch … --type=json -p "
            """'[{"op":"remove","path":"/spec/accelerator/count"}]'""",
            ".accelerator.count",
            lambda spec: (
                not spec.accelerator.count or spec.accelerator.count >= spec.parallelism.devices
            ),
        ),
        Rule(
            "self.transport.security == 'Curve' || "
            "((!has(self.keys.infer) || self.keys.infer.size() == 0) && "
            "(!has(self.keys.admin) || self.keys.admin.size() == 0))",
            "public keys are for transport.security Curve only",
            ".keys",
            lambda spec: (
                spec.transport.security == "Curve" or not (spec.keys.infer or spec.keys.admin)
            ),
        ),
    )
    model: Annotated[Model, Meta(description="The model to serve.")]
    runtime: Annotated[Runtime, Meta(description="What runs behind the engine server.")] = Runtime()
    parallelism: Annotated[
        Parallelism, Meta(description="How an engine of type vllm uses several devices.")
    ] = Parallelism()
    accelerator: Annotated[Accelerator, Meta(description=ACCELERATOR)] = Accelerator()
    resources: Annotated[Resources, Meta(description="Of the engine container.")] = Resources()
    pod_template: Annotated[PodTemplate, Meta(description="Merged over the pod.")] = PodTemplate()
    transport: Annotated[Transport, Meta(description="Ports and clients.")] = Transport()
    limits: Annotated[Limits, Meta(description="What it takes of its clients.")] = Limits()
    keys: Annotated[Keys, Meta(description="Keys, with transport.security Curve.")] = Keys()
    liveness: Annotated[Liveness, Meta(description="Timers.")] = Liveness()
    drain: Annotated[Drain, Meta(description="How an engine ends.")] = Drain()
    restart: Annotated[Restart, Meta(description="Back-off and limit.")] = Restart()

    @property
    def devices(self) -> int:
        """Devices each engine asks for."""
        count = self.accelerator.count
        return self.parallelism.devices if count is None else count


class EngineClusterSpec(EngineTemplate, frozen=True, kw_only=True):
    """Engines that serve one model, one per data-parallel rank."""

    replicas: Annotated[
        int, Meta(ge=0, le=MAX_REPLICAS, description="Number of engines: data-parallel ranks.")
    ] = 1
    rollout: Annotated[Rollout, Meta(description="How changes reach engines.")] = Rollout()
    coordinator: Annotated[Coordinator, Meta(description="Collects and publishes load.")] = (
        Coordinator()
    )


class EngineCoreSpec(EngineTemplate, frozen=True, kw_only=True):
    """One engine, complete in itself."""

    rules: ClassVar[tuple[Rule, ...]] = (
        *EngineTemplate.rules,
        Rule(
            "self.transport.security == 'None' || has(self.clusterKeys) || "
            "!has(self.coordinatorAddress) || self.coordinatorAddress == '' || "
            "(has(self.coordinatorKey) && self.coordinatorKey != '')",
            "transport.security Curve needs the coordinator's public key, too",
            ".coordinatorKey",
            lambda spec: (
                spec.transport.security == "None"
                or spec.cluster_keys is not None
                or not spec.coordinator_address
                or spec.coordinator_key != ""
            ),
        ),
    )
    rank: Annotated[
        int,
        Meta(
            ge=0,
            le=65535,
            description="Data-parallel rank; cannot be changed.",
            extra_json_schema=schema.IMMUTABLE,
        ),
    ] = 0
    coordinator_address: Annotated[
        str,
        Meta(
            max_length=512,
            pattern=r"^(tcp://[^\s]+:[0-9]+)?$",
            description="Where the engine reports its load; empty: nowhere.",
        ),
    ] = ""
    coordinator_key: Annotated[
        str,
        Meta(
            pattern=f"^$|{KEY_PATTERN}",
            description="The public key of a coordinator that speaks CURVE; engines of a cluster "
            "find it in clusterKeys.allowedConfigMap.",
        ),
    ] = ""
    cluster_keys: (
        Annotated[
            ClusterKeys,
            Meta(
                description="With transport.security Curve: keys that the engine's cluster made. "
                "Absent: the operator makes keys for this engine alone."
            ),
        ]
        | None
    ) = None
