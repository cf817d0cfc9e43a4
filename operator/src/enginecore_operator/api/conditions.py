"""Condition types and their fixed reasons; the transition time moves only on a flip."""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta


class ConditionType(StrEnum):
    """Types of conditions."""

    AVAILABLE = "Available"
    PROGRESSING = "Progressing"
    DEGRADED = "Degraded"
    READY = "Ready"
    SCHEDULED = "Scheduled"
    FACTS_KNOWN = "FactsKnown"
    EXPOSED = "Exposed"


class Reason(StrEnum):
    """Reasons of conditions and Events: fixed words that programs may compare."""

    # Available
    ALL_REPLICAS_READY = "AllReplicasReady"
    ENOUGH_REPLICAS_READY = "EnoughReplicasReady"
    REPLICAS_NOT_READY = "ReplicasNotReady"
    SCALED_TO_ZERO = "ScaledToZero"
    # Progressing
    SETTLED = "Settled"
    SCALING = "Scaling"
    ROLLING_OUT = "RollingOut"
    STARTING = "Starting"
    PAUSED = "Paused"
    # Degraded
    AS_EXPECTED = "AsExpected"
    ENGINE_FAILED = "EngineFailed"
    ENGINE_STUCK = "EngineStuck"
    NAME_TAKEN = "NameTaken"
    INVALID_SPEC = "InvalidSpec"
    API_REFUSED = "RefusedByApi"
    OPERATOR_FAULT = "OperatorFault"
    # Ready
    POD_READY = "PodReady"
    POD_NOT_READY = "PodNotReady"
    POD_PENDING = "PodPending"
    POD_MISSING = "PodMissing"
    CANNOT_START = "CannotStart"
    BACK_OFF = "BackOff"
    RESTART_LIMIT = "RestartLimitReached"
    DRAINING = "Draining"
    # Scheduled
    POD_SCHEDULED = "PodScheduled"
    UNSCHEDULABLE = "Unschedulable"
    NOT_SCHEDULED = "NotScheduledYet"
    # FactsKnown
    FACTS_READ = "FactsRead"
    SIMULATED_NODE = "SimulatedNode"
    NOT_ANSWERING = "NotAnswering"
    NOT_LOADED = "NotLoaded"
    # Exposed
    ADDRESS_KNOWN = "AddressKnown"
    SERVICE_PENDING = "ServicePending"
    LOAD_BALANCER_PENDING = "LoadBalancerPending"
    NO_NODE_ADDRESS = "NoNodeAddress"
    # Events only
    CREATED = "Created"
    DELETED = "Deleted"
    REPLACED = "Replaced"
    POD_FAILED = "PodFailed"
    UPDATED = "Updated"
    ENGINE_READY = "EngineReady"
    ENGINE_NOT_READY = "EngineNotReady"
    KEYS_MADE = "KeysMade"
    KEYS_CHANGING = "KeysChanging"


class Condition(msgspec.Struct, frozen=True, rename="camel"):
    """One condition, as Kubernetes defines it."""

    type: Annotated[str, Meta(description="What it speaks of.")]
    status: Annotated[str, Meta(description="True or False.")]
    reason: Annotated[
        str, Meta(description="One fixed word that says why; docs/conditions.md lists all.")
    ]
    message: Annotated[str, Meta(description="The same for people, with names and numbers.")] = ""
    last_transition_time: Annotated[str, Meta(description="When its status changed last.")] = ""
    observed_generation: Annotated[
        int, Meta(description="Generation of the spec that it speaks of.")
    ] = 0


def timestamp(now: datetime) -> str:
    """Write a UTC time as Kubernetes does, to the second."""
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")


def precise_timestamp(now: datetime) -> str:
    """Write a UTC time with microseconds, as MicroTime fields take it."""
    return now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_timestamp(text: str) -> datetime:
    """Read what the two functions above write. Raises ValueError."""
    return datetime.fromisoformat(text)


def find_condition(conditions: Sequence[Condition], kind: str) -> Condition | None:
    """Return the condition of this type, or None."""
    return next((c for c in conditions if c.type == kind), None)


def is_true(conditions: Sequence[Condition], kind: str) -> bool:
    """Tell whether the condition of this type is there and True."""
    found = find_condition(conditions, kind)
    return found is not None and found.status == "True"


def set_condition(
    previous: Sequence[Condition],
    kind: ConditionType,
    status: bool,
    reason: Reason,
    message: str,
    *,
    now: datetime,
    generation: int,
) -> Condition:
    """Build a condition that keeps the previous transition time unless its status flips."""
    word = "True" if status else "False"
    before = find_condition(previous, kind)
    unchanged = before is not None and before.status == word and before.last_transition_time
    return Condition(
        type=kind,
        status=word,
        reason=reason,
        message=message,
        last_transition_time=before.last_transition_time
        if before is not None and unchanged
        else timestamp(now),
        observed_generation=generation,
    )
