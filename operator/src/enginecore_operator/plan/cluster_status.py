"""The status of an EngineCluster, from what is seen of its EngineCores."""

from collections.abc import Mapping
from datetime import datetime

import msgspec

from enginecore_operator.api import labels
from enginecore_operator.api.conditions import ConditionType, Reason, find_condition, is_true
from enginecore_operator.api.status import ClientAddresses, EngineClusterStatus
from enginecore_operator.api.v1alpha1 import EngineClusterSpec
from enginecore_operator.plan.observed import ClusterView, ObservedCore
from enginecore_operator.plan.verdicts import Verdict, build_conditions, replace_condition

_FAILED_REASONS = (Reason.RESTART_LIMIT, Reason.INVALID_SPEC, Reason.API_REFUSED)
_NAMED_AT_MOST = 3


class Sight(msgspec.Struct, frozen=True, kw_only=True):
    """What a status speaks of: engines by rank, wanted ones and those to leave."""

    spec: EngineClusterSpec
    revision: str
    serving: Mapping[int, ObservedCore]
    surplus: Mapping[int, ObservedCore]
    taken: tuple[str, ...]
    addresses: ClientAddresses


class _Counts(msgspec.Struct, frozen=True):
    desired: int
    there: int
    ready: int
    updated: int


def build_status(view: ClusterView, sight: Sight, now: datetime) -> EngineClusterStatus:
    """Build the whole status."""
    counts = _count(sight)
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
        selector=selector(view.cluster.metadata.name),
        current_revision=sight.revision,
        client_addresses=sight.addresses,
        conditions=build_conditions(
            view.cluster.status.conditions,
            verdicts,
            now=now,
            generation=view.cluster.metadata.generation,
        ),
    )


def build_refusal(
    view: ClusterView, reason: Reason, message: str, now: datetime
) -> EngineClusterStatus:
    """Build the status of a cluster that cannot be served: all but Degraded stays."""
    before, generation = view.cluster.status, view.cluster.metadata.generation
    return msgspec.structs.replace(
        before,
        observed_generation=generation,
        conditions=replace_condition(
            before.conditions,
            ConditionType.DEGRADED,
            Verdict(True, reason, message),
            now=now,
            generation=generation,
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


def _count(sight: Sight) -> _Counts:
    return _Counts(
        desired=sight.spec.replicas,
        there=len(sight.serving) + len(sight.surplus),
        ready=sum(_is_ready(core) for core in sight.serving.values()),
        updated=sum(_is_updated(core, sight.revision) for core in sight.serving.values()),
    )


def _available(counts: _Counts) -> Verdict:
    if counts.desired == 0:
        return Verdict(False, Reason.SCALED_TO_ZERO, "no engine is wanted")
    if counts.ready < counts.desired:
        message = f"{counts.ready} of {counts.desired} engines are ready"
        return Verdict(False, Reason.REPLICAS_NOT_READY, message)
    return Verdict(True, Reason.ALL_REPLICAS_READY, f"{counts.ready} engines are ready")


def _progressing(sight: Sight, counts: _Counts) -> Verdict:
    outdated = len(sight.serving) - counts.updated
    if outdated and sight.spec.rollout.paused:
        message = f"the rollout is paused with {outdated} engines of an earlier spec"
        return Verdict(False, Reason.PAUSED, message)
    if outdated:
        message = f"{counts.updated} of {counts.desired} engines have the present spec"
        return Verdict(True, Reason.ROLLING_OUT, message)
    if counts.there != counts.desired:
        message = f"{counts.there} engines are there, {counts.desired} are wanted"
        return Verdict(True, Reason.SCALING, message)
    if counts.ready < counts.desired:
        message = f"{counts.desired - counts.ready} engines are not ready"
        return Verdict(True, Reason.STARTING, message)
    return Verdict(False, Reason.SETTLED, "")


def _degraded(sight: Sight) -> Verdict:
    if sight.taken:
        return Verdict(True, Reason.NAME_TAKEN, taken_message(sight.taken))
    failed = []
    for core in sight.serving.values():
        ready = find_condition(core.status.conditions, ConditionType.READY)
        if ready is not None and ready.reason in _FAILED_REASONS:
            failed.append(f"{core.metadata.name}: {ready.message}")
    if not failed:
        return Verdict(False, Reason.AS_EXPECTED, "")
    more = len(failed) - _NAMED_AT_MOST
    text = "; ".join(failed[:_NAMED_AT_MOST]) + (f"; and {more} more" if more > 0 else "")
    return Verdict(True, Reason.ENGINE_FAILED, text)
