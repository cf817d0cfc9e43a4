"""The status of EngineCluster and EngineCore, version v1alpha1."""

# ruff: noqa: RUF012 - msgspec makes a new list or dict of an empty default for each object

import msgspec

from enginecore_operator.api.conditions import Condition
from enginecore_operator.api.schema import Spec
from enginecore_wire.contract import EngineFacts


class ClientAddresses(msgspec.Struct, frozen=True):
    """The addresses as a client takes them; index i is rank i."""

    input_address: list[str] = []
    output_address: list[str] = []
    stats_update_address: str = ""


class EngineClusterStatus(Spec, frozen=True):
    """What the operator sees."""

    observed_generation: int = 0
    replicas: int = 0
    ready_replicas: int = 0
    updated_replicas: int = 0
    desired_replicas: int = 0
    established_replicas: int = 0
    selector: str = ""
    current_revision: str = ""
    client_addresses: ClientAddresses = ClientAddresses()
    conditions: list[Condition] = []


class PodReference(Spec, frozen=True):
    """The pod of the current epoch."""

    name: str = ""
    ip: str = ""
    node: str = ""


class Failure(Spec, frozen=True):
    """The latest failure; `count` failures came in a row. `message` ends with the last log."""

    epoch: int
    count: int
    time: str
    reason: str
    message: str = ""
    revision: str = ""


class EngineCoreStatus(Spec, frozen=True):
    """What the operator sees."""

    observed_generation: int = 0
    phase: str = "Pending"
    epoch: int = 0
    input_address: str = ""
    output_address: str = ""
    pod: PodReference = PodReference()
    restarts: int = 0
    failure: Failure | None = None
    engine: EngineFacts | None = None
    conditions: list[Condition] = []
