"""The status of EngineCluster and EngineCore, version v1alpha1."""

# ruff: noqa: RUF012 - msgspec makes a new list or dict of an empty default for each object

from typing import Annotated

import msgspec
from msgspec import Meta

from enginecore_operator.api.conditions import Condition
from enginecore_operator.api.schema import Spec
from enginecore_wire.contract import EngineFacts

Generation = Annotated[int, Meta(description="Generation of the spec that this status speaks of.")]


class ClientAddresses(msgspec.Struct, frozen=True):
    """The addresses as a client takes them; index i is rank i."""

    input_address: Annotated[
        list[str], Meta(description="ZMQ input of each rank; empty while it has no pod.")
    ] = []
    output_address: Annotated[
        list[str], Meta(description="ZMQ output of each rank; empty while it has no pod.")
    ] = []
    stats_update_address: Annotated[
        str, Meta(description="Where the coordinator publishes the load of all engines.")
    ] = ""
    server_key: Annotated[
        list[str] | None,
        Meta(description="Public key of each rank's pod, with CURVE; empty while it has none."),
    ] = None
    stats_server_key: Annotated[
        str | None, Meta(description="Public key of the coordinator, with CURVE.")
    ] = None


class KeysStatus(Spec, frozen=True):
    """How far the keys of another generation have come."""

    generation: Annotated[
        int, Meta(description="Generation of the keys that were in use before this step began.")
    ]
    next: Annotated[int, Meta(description="Generation that comes in; 0: none.")] = 0
    step: Annotated[
        str,
        Meta(
            description="Settled; or, one after another: Listing (the new keys are let in), "
            "Publishing (clients get theirs), Replacing (engines get theirs), Retiring (the "
            "old ones are let in for the last time)."
        ),
    ] = "Settled"
    since: Annotated[str, Meta(description="When the step began.")] = ""


class EngineClusterStatus(Spec, frozen=True):
    """What the operator sees."""

    observed_generation: Generation = 0
    replicas: Annotated[
        int, Meta(description="EngineCores that are there, those that leave included.")
    ] = 0
    ready_replicas: Annotated[int, Meta(description="Engines that are Ready.")] = 0
    updated_replicas: Annotated[int, Meta(description="Engines with the present spec.")] = 0
    desired_replicas: Annotated[
        int, Meta(description="spec.replicas as of observedGeneration.")
    ] = 0
    established_replicas: Annotated[
        int,
        Meta(
            description="Replicas when every engine was Ready last, at most the present number: "
            "of these, all but spec.rollout.maxUnavailable must be Ready to be Available."
        ),
    ] = 0
    selector: Annotated[
        str, Meta(description="Label selector of the engines' pods, for autoscalers.")
    ] = ""
    current_revision: Annotated[
        str, Meta(description="Hash of what the present spec makes of an engine's pod.")
    ] = ""
    client_addresses: Annotated[
        ClientAddresses,
        Meta(description="What a client takes as client_addresses: as of now, by pod IP."),
    ] = ClientAddresses()
    exposed_addresses: Annotated[
        ClientAddresses | None,
        Meta(
            description="The same for clients outside the cluster, where spec.transport.expose "
            "is set; without the coordinator."
        ),
    ] = None
    keys: Annotated[
        KeysStatus | None,
        Meta(
            description="Keys, once there are any; it stays while spec.transport.security is None."
        ),
    ] = None
    conditions: Annotated[
        list[Condition], Meta(description="Available, Progressing and Degraded.")
    ] = []


class PodReference(Spec, frozen=True):
    """The pod of the current epoch."""

    name: Annotated[str, Meta(description="Its name.")] = ""
    ip: Annotated[str, Meta(description="Its IP; empty until it has one.")] = ""
    node: Annotated[str, Meta(description="Its node; empty until it is scheduled.")] = ""


class Failure(Spec, frozen=True):
    """The latest failure; `count` failures came in a row. `message` ends with the last log."""

    epoch: Annotated[int, Meta(description="Epoch of the pod that failed.")]
    count: Annotated[
        int, Meta(description="Failures in a row with this spec; spec.restart.limit ends them.")
    ]
    time: Annotated[str, Meta(description="When the operator saw it.")]
    reason: Annotated[str, Meta(description="One word, such as EngineExited or OOMKilled.")]
    message: Annotated[
        str, Meta(description="What happened, and the last lines of the engine's log.")
    ] = ""
    revision: Annotated[str, Meta(description="Revision of the spec it failed with.")] = ""


class EngineCoreStatus(Spec, frozen=True):
    """What the operator sees."""

    observed_generation: Generation = 0
    phase: Annotated[
        str,
        Meta(
            description="Pending, Starting, Loading, Ready, Draining, BackOff or Failed: where "
            "the engine is in its life; Failed: given up."
        ),
    ] = "Pending"
    epoch: Annotated[
        int, Meta(description="Number of the present pod: each replacement is the next one.")
    ] = 0
    input_address: Annotated[str, Meta(description="ZMQ input of the present pod.")] = ""
    output_address: Annotated[str, Meta(description="ZMQ output of the present pod.")] = ""
    exposed_input_address: Annotated[
        str, Meta(description="ZMQ input for clients outside the cluster, by transport.expose.")
    ] = ""
    exposed_output_address: Annotated[
        str, Meta(description="ZMQ output for clients outside the cluster, by transport.expose.")
    ] = ""
    server_key: Annotated[
        str, Meta(description="Public key of the present pod's engine server, with CURVE.")
    ] = ""
    keys: Annotated[
        KeysStatus | None,
        Meta(
            description="Keys of an engine of its own, once there are any; it stays while "
            "spec.transport.security is None."
        ),
    ] = None
    pod: Annotated[PodReference, Meta(description="The pod of the present epoch.")] = PodReference()
    restarts: Annotated[int, Meta(description="Replacements of pods that ended or were lost.")] = 0
    failure: Annotated[
        Failure | None, Meta(description="The latest failure; it stays once the engine is back.")
    ] = None
    engine: Annotated[
        EngineFacts | None, Meta(description="What the engine tells of itself once it is loaded.")
    ] = None
    conditions: Annotated[
        list[Condition], Meta(description="Ready, Scheduled, FactsKnown and Exposed.")
    ] = []
