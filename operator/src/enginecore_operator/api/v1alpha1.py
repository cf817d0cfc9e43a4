"""Spec and status of EngineCluster and EngineCore, version v1alpha1.

The CRDs are generated from these structs (crdgen): descriptions, ranges and defaults come from
the annotations, rules over several fields from `rules` (CEL). A field exists only once it works.
"""

# ruff: noqa: RUF012 - msgspec makes a new list or dict of an empty default for each object

from typing import Annotated, Any, ClassVar, Final, Literal

from msgspec import Meta

from enginecore_operator.api import schema
from enginecore_operator.api.labels import CLIENT_PREFIX, RESERVED_ENV_PREFIX
from enginecore_operator.api.podtemplate import PodTemplate
from enginecore_operator.api.quantity import parse_quantity
from enginecore_operator.api.schema import Rule, Spec
from enginecore_operator.api.vllm_options import option_rules
from enginecore_wire.contract import HTTP_PORT, INPUT_PORT, MOST_CLIENTS, OUTPUT_PORT
from enginecore_wire.public_keys import KEY_PATTERN

MAX_REPLICAS = 4096
MODEL_FILE_SUFFIXES: Final = (".gguf", ".safetensors", ".bin", ".pt", ".pth")
"""By these a hostPath is known to be a file; any other is a directory."""

Port = Annotated[int, Meta(ge=1, le=65535)]
Seconds = Annotated[float, Meta(gt=0, le=86400)]
Quantity = int | Annotated[str, Meta(pattern=schema.QUANTITY_PATTERN, max_length=64)]
PublicKey = Annotated[str, Meta(pattern=KEY_PATTERN)]
Name = Annotated[str, Meta(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]


class PersistentVolumeClaim(Spec, frozen=True):
    """A claim in the namespace of the engine that holds the model."""

    claim_name: Annotated[str, Meta(min_length=1, max_length=253, description="The claim's name.")]
    path: Annotated[
        str,
        Meta(
            max_length=512,
            pattern=r"^([^/].*)?$",
            description="Directory or file inside the volume; empty: its root.",
        ),
    ] = ""


class ModelSource(Spec, frozen=True):
    """Where the model's files come from: exactly one of the fields."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.hostPath) != has(self.pvc)",
            "give exactly one of hostPath and pvc",
            "",
            lambda source: (source.host_path is None) != (source.pvc is None),
        ),
    )
    host_path: (
        Annotated[
            str,
            Meta(
                min_length=2,
                max_length=1024,
                pattern="^/",
                description="Directory on the node that holds the checkpoint, or its file "
                f"({', '.join(MODEL_FILE_SUFFIXES)}); mounted read-only, never created.",
            ),
        ]
        | None
    ) = None
    pvc: (
        Annotated[
            PersistentVolumeClaim, Meta(description="Persistent volume claim, mounted read-only.")
        ]
        | None
    ) = None


class Model(Spec, frozen=True):
    """The model to serve."""

    name: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=512,
            description="Name of the model, for example HuggingFaceTB/SmolLM2-135M-Instruct. "
            "Without a source, the image holds the files: an absolute name is their path, any "
            "other is looked for under /models by its last component.",
        ),
    ]
    served_name: Annotated[
        str, Meta(max_length=512, description="Name in metrics; empty: the model's name.")
    ] = ""
    source: (
        Annotated[ModelSource, Meta(description="Where the files come from; absent: the image.")]
        | None
    ) = None
    vocab_size: (
        Annotated[
            int,
            Meta(ge=1, le=2**31 - 1, description="Only where the model's files cannot tell."),
        ]
        | None
    ) = None


class EnvVar(Spec, frozen=True, omit_defaults=True):
    """One environment variable of the engine container."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"!self.name.startsWith('{RESERVED_ENV_PREFIX}')",
            f"names that begin with {RESERVED_ENV_PREFIX} are the operator's",
            ".name",
            lambda variable: not variable.name.startswith(RESERVED_ENV_PREFIX),
        ),
    )
    name: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=253,
            pattern=r"^[-._a-zA-Z][-._a-zA-Z0-9]*$",
            description="The variable's name.",
        ),
    ]
    value: Annotated[str, Meta(max_length=32768, description="Its value.")] = ""
    value_from: Annotated[
        dict[str, Any] | None,
        Meta(description="Source of the value, as in a Pod: secretKeyRef, configMapKeyRef, …"),
    ] = None


Env = Annotated[
    list[EnvVar],
    Meta(
        max_length=128,
        description="Environment of the engine container.",
        extra_json_schema=schema.KEYED_BY_NAME,
    ),
]
Argument = Annotated[str, Meta(max_length=1024)]


class Runtime(Spec, frozen=True):
    """What runs behind the engine server."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.type != 'custom' || (has(self.image) && self.image != '')",
            "type custom needs an image that holds enginecore-server and the engine",
            ".image",
            lambda runtime: runtime.type != "custom" or runtime.image != "",
        ),
        Rule(
            "self.type != 'custom' || (has(self.command) && self.command.size() > 0)",
            "type custom needs the command that starts the engine",
            ".command",
            lambda runtime: runtime.type != "custom" or len(runtime.command) > 0,
        ),
        Rule(
            "self.type == 'custom' || !has(self.command) || self.command.size() == 0",
            "only type custom takes a command; give arguments in args",
            ".command",
            lambda runtime: runtime.type == "custom" or not runtime.command,
        ),
        *option_rules(),
    )
    type: Annotated[
        Literal["torch", "vllm", "custom"],
        Meta(
            description="torch: the built-in engine. vllm: `vllm serve --headless` in a stock vLLM "
            "image, into which the engine server is copied. custom: any engine that speaks vLLM's "
            "handshake, started by command."
        ),
    ] = "torch"
    image: Annotated[
        str,
        Meta(
            max_length=1024,
            description="Image; empty: the operator's default for the type. An image of type vllm "
            "has vLLM and Python 3.11 or newer, one of type custom has enginecore-server.",
        ),
    ] = ""
    command: Annotated[
        list[Argument], Meta(max_length=64, description="Command of a custom engine.")
    ] = []
    args: Annotated[
        list[Argument],
        Meta(
            max_length=64,
            description="Arguments appended to the command; those of vLLM that the spec has a "
            "field for are refused.",
        ),
    ] = []
    env: Env = []


class Parallelism(Spec, frozen=True):
    """How an engine of type vllm spreads its model over its devices."""

    tensor: Annotated[
        int, Meta(ge=1, le=64, description="Devices that share each layer (tensor parallel).")
    ] = 1
    pipeline: Annotated[
        int, Meta(ge=1, le=64, description="Groups of devices that share the layers (pipeline).")
    ] = 1

    @property
    def devices(self) -> int:
        """Devices an engine computes on."""
        return self.tensor * self.pipeline


class Accelerator(Spec, frozen=True):
    """Devices of the engine container, as an extended resource."""

    name: Annotated[
        str,
        Meta(
            min_length=3,
            max_length=253,
            pattern=r"^[a-z0-9.-]+/[A-Za-z0-9_.-]+$",
            description="Name of the extended resource.",
        ),
    ] = "nvidia.com/gpu"
    count: (
        Annotated[
            int,
            Meta(
                ge=0,
                le=64,
                description="Devices per engine; absent: parallelism.tensor times "
                "parallelism.pipeline; 0: CPU only.",
            ),
        ]
        | None
    ) = None


ResourceList = Annotated[dict[str, Quantity], Meta(max_length=32)]


class Resources(Spec, frozen=True):
    """Requests and limits of the engine container."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.requests) || !has(self.limits) || self.requests.all(name, "
            "!(name in self.limits) || quantity(string(self.requests[name]))"
            ".compareTo(quantity(string(self.limits[name]))) <= 0)",
            "must not be larger than limits",
            ".requests",
            lambda resources: all(
                parse_quantity(wanted) <= parse_quantity(resources.limits[name])
                for name, wanted in resources.requests.items()
                if name in resources.limits
            ),
        ),
    )
    requests: Annotated[ResourceList, Meta(description="What the scheduler reserves.")] = {}
    limits: Annotated[ResourceList, Meta(description="What the container may use at most.")] = {}


class Transport(Spec, frozen=True):
    """Ports the engine listens on and how many clients it serves."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.inputPort != self.outputPort",
            "equals inputPort",
            ".outputPort",
            lambda transport: transport.input_port != transport.output_port,
        ),
        Rule(
            "self.inputPort != self.httpPort",
            "equals inputPort",
            ".httpPort",
            lambda transport: transport.input_port != transport.http_port,
        ),
        Rule(
            "self.outputPort != self.httpPort",
            "equals outputPort",
            ".httpPort",
            lambda transport: transport.output_port != transport.http_port,
        ),
    )
    input_port: Annotated[Port, Meta(description="ZMQ input socket.")] = INPUT_PORT
    output_port: Annotated[Port, Meta(description="ZMQ output socket.")] = OUTPUT_PORT
    http_port: Annotated[Port, Meta(description="Health, status and metrics.")] = HTTP_PORT
    max_clients: Annotated[
        int, Meta(ge=1, le=MOST_CLIENTS, description="Clients served at the same time.")
    ] = 64
    security: Annotated[
        Literal["Curve", "None"],
        Meta(
            description="Curve: everything is encrypted, and only holders of listed keys get in; "
            "the operator makes the keys. None: whoever reaches the ports can use the engine."
        ),
    ] = "Curve"
    expose: Annotated[
        Literal["None", "NodePort", "LoadBalancer"],
        Meta(
            description="How clients outside the cluster reach the engine: by a Service of this "
            "type of its own, whose addresses are in status; None: not at all. Replaces no pod."
        ),
    ] = "None"
    network_policy: Annotated[
        Literal["Clients", "None"],
        Meta(
            description="Who may connect, where the cluster's network enforces NetworkPolicies. "
            f"Clients: pods labelled {CLIENT_PREFIX}NAME=true, NAME being that of the "
            "EngineCluster, or of an EngineCore of its own; everybody, if expose or hostNetwork "
            "lets clients outside in. None: everybody. Replaces no pod."
        ),
    ] = "Clients"


PublicKeys = Annotated[list[PublicKey], Meta(max_length=256)]


class Keys(Spec, frozen=True):
    """Keys with transport.security Curve."""

    generation: Annotated[
        int,
        Meta(
            ge=1,
            le=2**31 - 1,
            description="Another number makes new keys for engines, coordinator and clients, and "
            "brings them in step by step; none is lost that was let in.",
        ),
    ] = 1
    infer: Annotated[
        PublicKeys,
        Meta(
            description="Public keys of further clients that may send requests, 40 characters of "
            "Z85 each, as python -m enginecore_curve prints them."
        ),
    ] = []
    admin: Annotated[
        PublicKeys,
        Meta(description="Public keys of further clients that may control the engine, too."),
    ] = []


class ClusterKeys(Spec, frozen=True):
    """Keys that others made for an engine."""

    secret_name: Annotated[
        Name, Meta(description="Secret with the engine server's secret key, under `server`.")
    ]
    public_key: Annotated[PublicKey, Meta(description="The public key that belongs to it.")]
    allowed_config_map: Annotated[
        Name,
        Meta(description="ConfigMap with the keys that are let in: `infer`, `admin`, a line each."),
    ]


class Liveness(Spec, frozen=True):
    """Timers that tell a dead peer from a slow one."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.lostAfterSeconds > self.pingSeconds",
            "must be larger than pingSeconds",
            ".lostAfterSeconds",
            lambda liveness: liveness.lost_after_seconds > liveness.ping_seconds,
        ),
    )
    ping_seconds: Annotated[Seconds, Meta(description="Period of the clients' pings.")] = 1.0
    lost_after_seconds: Annotated[Seconds, Meta(description="Silence that means lost.")] = 4.0
    grace_seconds: Annotated[
        Seconds, Meta(description="How long a client may reconnect before its requests end.")
    ] = 5.0
    step_deadline_seconds: Annotated[
        Seconds, Meta(description="An engine with work and no output for this long is dead.")
    ] = 60.0
    start_progress_deadline_seconds: Annotated[
        Seconds, Meta(description="A starting engine without progress for this long is dead.")
    ] = 600.0


class Drain(Spec, frozen=True):
    """How an engine ends."""

    deadline_seconds: Annotated[
        int, Meta(ge=1, le=86400, description="How long running streams may go on.")
    ] = 60


class Restart(Spec, frozen=True):
    """Back-off and limit of an engine that fails again and again."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.maxSeconds >= self.initialSeconds",
            "must not be smaller than initialSeconds",
            ".maxSeconds",
            lambda restart: restart.max_seconds >= restart.initial_seconds,
        ),
    )
    initial_seconds: Annotated[
        Seconds, Meta(description="Wait after the first failure; doubles with each.")
    ] = 1.0
    max_seconds: Annotated[Seconds, Meta(description="Longest wait.")] = 300.0
    limit: Annotated[
        int,
        Meta(
            ge=1,
            le=1000,
            description="Failures in a row after which the engine is given up until its spec "
            "changes. An engine that was Ready for a minute starts to count anew.",
        ),
    ] = 10


class Rollout(Spec, frozen=True):
    """How a change of the spec reaches running engines: highest rank first."""

    max_unavailable: Annotated[
        int, Meta(ge=1, le=MAX_REPLICAS, description="Engines not Ready at the same time.")
    ] = 1
    paused: Annotated[bool, Meta(description="Leave running engines as they are.")] = False


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
