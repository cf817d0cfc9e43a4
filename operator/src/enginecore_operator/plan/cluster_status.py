"""The status of an EngineCluster, from what is seen of its EngineCores."""

from collections.abc import Mapping
from datetime import datetime

import msgspec

from enginecore_operator.api import labels
from enginecore_operator.api.conditions import ConditionType, Reason, find_condition, is_true
from enginecore_operator.api.status import ClientAddresses, EngineClusterStatus, Failure
from enginecore_operator.api.v1alpha1 import EngineClusterSpec
from enginecore_operator.plan.observed import ClusterView, ObservedCore
from enginecore_operator.plan.restart import describe_failures
from enginecore_operator.plan.verdicts import Verdict, build_conditions, replace_condition
from enginecore_wire.wording import counted, is_or_are

_FAILED_REASONS = (
    Reason.RESTART_LIMIT,
    Reason.BACK_OFF,
    Reason.INVALID_SPEC,
    Reason.API_REFUSED,
    Reason.OPERATOR_FAULT,
)
_STUCK_REASONS = (Reason.CANNOT_START, Reason.UNSCHEDULABLE)
_NAMED_AT_MOST = 3


class Sight(msgspec.Struct, frozen=True, kw_only=True):
    """What a status speaks of: engines by rank, wanted ones and those to leave."""

    spec: EngineClusterSpec
    revision: str
    serving: Mapping[int, ObservedCore]
    surplus: Mapping[int, ObservedCore]
    taken: tuple[str, ...]
    addresses: ClientAddresses
    exposed: ClientAddresses | None


class _Counts(msgspec.Struct, frozen=True):
    desired: int
    there: int
    ready: int
    updated: int
    established: int
    needed: int


def build_status(view: ClusterView, sight: Sight, now: datetime) -> EngineClusterStatus:
    """Build the whole status."""
    counts = _count(view, sight)
    verdicts = {
        ConditionType.AVAILABLE: _available(counts),
        ConditionType.PROGRESSING: _progressing(sight, counts),
        ConditionType.DEGRADED: _degraded(sight),
    }
    return EngineClusterStatus(
        observed_generation=view.cluster.metadata.generation,
        replicas=counts.there,
        ready_replicas=counts.ready,
        updated_replicas=counts.updated,
        desired_replicas=counts.desired,
        established_replicas=counts.established,
        selector=selector(view.cluster.metadata.name),
        current_revision=sight.revision,
        client_addresses=sight.addresses,
        exposed_addresses=sight.exposed,
        keys=view.keys.state if view.keys is not None else view.cluster.status.keys,
        conditions=build_conditions(
            view.cluster.status.conditions,
            verdicts,
            now=now,
            generation=view.cluster.metadata.generation,
        ),
    )


def build_refusal(
    view: ClusterView, status: EngineClusterStatus, reason: Reason, message: str, now: datetime
) -> EngineClusterStatus:
    """Build the status of an EngineCluster in whose way something is: all but Degraded stays."""
    generation = view.cluster.metadata.generation
    return msgspec.structs.replace(
        status,
        observed_generation=generation,
        conditions=replace_condition(
            view.cluster.status.conditions,
            ConditionType.DEGRADED,
            Verdict(True, reason, message),
            now=now,
            generation=generation,
            planned=status.conditions,
        ),
    )


def selector(cluster: str) -> str:
    """Return the selector of the engines' pods, as autoscalers take it."""
    return f"{labels.CLUSTER}={cluster},{labels.COMPONENT}={labels.ENGINE}"


def taken_message(taken: tuple[str, ...]) -> str:
    """Say which names others have taken."""
    return f"not this cluster's: {', '.join(taken)}; delete them or rename the cluster"


def _is_ready(core: ObservedCore) -> bool:
    return core.caught_up and is_true(core.status.conditions, ConditionType.READY)


def _is_updated(core: ObservedCore, revision: str) -> bool:
    return core.metadata.labels.get(labels.REVISION) == revision


def _count(view: ClusterView, sight: Sight) -> _Counts:
    desired = sight.spec.replicas
    ready = sum(_is_ready(core) for core in sight.serving.values())
    established = min(view.cluster.status.established_replicas, desired)
    established = desired if ready >= desired else established
    # At first, and after zero, every engine counts; later those that are added do not.
    spared = sight.spec.rollout.max_unavailable
    return _Counts(
        desired=desired,
        there=len(sight.serving) + len(sight.surplus),
        ready=ready,
        updated=sum(_is_updated(core, sight.revision) for core in sight.serving.values()),
        established=established,
        needed=max(established - spared, 1) if established else desired,
    )


def _available(counts: _Counts) -> Verdict:
    if counts.desired == 0:
        return Verdict(False, Reason.SCALED_TO_ZERO, "no engine is wanted")
    if counts.ready >= counts.desired:
        message = f"{counted(counts.ready, 'engine')} {is_or_are(counts.ready)} ready"
        return Verdict(True, Reason.ALL_REPLICAS_READY, message)
    message = (
        f"{counts.ready} of {counted(counts.desired, 'engine')} {is_or_are(counts.ready)} ready, "
        f"{counts.needed} {is_or_are(counts.needed)} needed"
    )
    if counts.ready >= counts.needed:
        return Verdict(True, Reason.ENOUGH_REPLICAS_READY, message)
    return Verdict(False, Reason.REPLICAS_NOT_READY, message)


def _progressing(sight: Sight, counts: _Counts) -> Verdict:
    outdated = len(sight.serving) - counts.updated
    if outdated and sight.spec.rollout.paused:
        message = f"the rollout is paused with {counted(outdated, 'engine')} of an earlier spec"
        return Verdict(False, Reason.PAUSED, message)
    if outdated:
        verb = "has" if counts.updated == 1 else "have"
        message = f"{counts.updated} of {counted(counts.desired, 'engine')} {verb} the present spec"
        return Verdict(True, Reason.ROLLING_OUT, message)
    if counts.there != counts.desired:
        message = (
            f"{counted(counts.there, 'engine')} {is_or_are(counts.there)} there, "
            f"{counts.desired} {is_or_are(counts.desired)} wanted"
        )
        return Verdict(True, Reason.SCALING, message)
    missing = counts.desired - counts.ready
    if missing > 0:
        message = f"{counted(missing, 'engine')} {is_or_are(missing)} not ready"
        return Verdict(True, Reason.STARTING, message)
    return Verdict(False, Reason.SETTLED, "every engine has the present spec and is ready")


def _degraded(sight: Sight) -> Verdict:
    if sight.taken:
        return Verdict(True, Reason.NAME_TAKEN, taken_message(sight.taken))
    failed, stuck = [], []
    for _, core in sorted(sight.serving.items()):
        ready = find_condition(core.status.conditions, ConditionType.READY)
        if ready is None or ready.status == "True":
            continue
        if ready.reason in _STUCK_REASONS:
            stuck.append(f"{core.metadata.name}: {ready.reason}: {ready.message}")
        elif ready.reason in _FAILED_REASONS:
            failed.append(f"{core.metadata.name}: {ready.reason}: {ready.message}")
        elif (failure := _failure_before(core)) is not None:
            failed.append(f"{core.metadata.name}: {describe_failures(failure)}")
    if failed or stuck:
        reason = Reason.ENGINE_FAILED if failed else Reason.ENGINE_STUCK
        return Verdict(True, reason, _some([*failed, *stuck]))
    hidden = [
        f"{core.metadata.name}: {exposed.message}"
        for _, core in sorted(sight.serving.items())
        if (exposed := find_condition(core.status.conditions, ConditionType.EXPOSED))
        and exposed.reason == Reason.API_REFUSED
    ]
    if hidden:
        return Verdict(True, Reason.API_REFUSED, _some(hidden))
    return Verdict(False, Reason.AS_EXPECTED, "no engine has failed or is kept from starting")


def _some(tales: list[str]) -> str:
    more = len(tales) - _NAMED_AT_MOST
    return "; ".join(tales[:_NAMED_AT_MOST]) + (f"; and {more} more" if more > 0 else "")


def _failure_before(core: ObservedCore) -> Failure | None:
    """Return the failure for which an engine starts again, until it is Ready."""
    status, revision = core.status, core.metadata.labels.get(labels.REVISION)
    failure = status.failure
    if failure is None or failure.revision != revision or failure.epoch != status.epoch - 1:
        return None
    return failure
