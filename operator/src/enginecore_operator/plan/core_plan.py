"""Reconcile one EngineCore: keep exactly one pod of the present epoch for it."""

from datetime import datetime
from enum import StrEnum

import msgspec

from enginecore_operator.api import labels
from enginecore_operator.api.conditions import (
    ConditionType,
    Reason,
    find_condition,
    is_true,
)
from enginecore_operator.api.status import EngineCoreStatus, Failure
from enginecore_operator.api.transport import ClusterKeys
from enginecore_operator.api.v1alpha1 import EngineCoreSpec
from enginecore_operator.api.validate import InvalidSpecError
from enginecore_operator.plan import core_status, names
from enginecore_operator.plan.actions import Action, Create, Delete, Event, ObjectRef, Patch, Plan
from enginecore_operator.plan.cores import read_core_spec
from enginecore_operator.plan.exposure import exposure_actions, exposure_events
from enginecore_operator.plan.facts import FACTS_PERIOD, facts_pending, facts_request
from enginecore_operator.plan.key_rotation import engine_generation
from enginecore_operator.plan.keys import Keyring, build_keyring, core_holder
from enginecore_operator.plan.network_policy import work_on_core
from enginecore_operator.plan.observed import CoreView, ObservedPod
from enginecore_operator.plan.obstacles import next_look
from enginecore_operator.plan.pods import build_pod
from enginecore_operator.plan.rendering import Rendering
from enginecore_operator.plan.restart import (
    describe_failures,
    given_up,
    record_failure,
    restart_time,
)
from enginecore_operator.plan.revision import compute_revision


class PodState(StrEnum):
    """What has become of the pod of the present epoch."""

    NEVER = "no pod was made yet"
    GONE = "the pod is gone"
    NODE_LOST = "the pod's node is gone"
    TERMINATING = "the pod is being deleted"
    ENDED = "the engine ended"
    OUTDATED = "the pod was made from another spec"
    SOUND = "the pod is as it should be"


class _Situation(msgspec.Struct, frozen=True, kw_only=True):
    """One EngineCore, looked at once."""

    view: CoreView
    spec: EngineCoreSpec
    revision: str
    state: PodState
    current: ObservedPod | None
    epoch: int
    failure: Failure | None
    failed_now: bool


def plan_core(view: CoreView, rendering: Rendering, now: datetime) -> Plan:
    """Decide the next pass over one EngineCore."""
    if view.core.metadata.deletion_timestamp is not None:
        return Plan(status=view.core.status)
    try:
        spec = read_core_spec(view.core)
    except InvalidSpecError as error:
        return refuse_core(view, Reason.INVALID_SPEC, str(error), now)
    policy = work_on_core(view, spec, rendering.operator_namespace)
    if policy.taken:
        text = f"{policy.taken[0]} is not this engine's; delete it, or rename the engine"
        return refuse_core(view, Reason.NAME_TAKEN, text, now)
    plan = _with_keys(view, spec, rendering, now)
    if not policy.actions:
        return plan
    # Before there is a pod to connect to.
    return msgspec.structs.replace(plan, stages=(policy.actions, *plan.stages))


def _with_keys(view: CoreView, spec: EngineCoreSpec, rendering: Rendering, now: datetime) -> Plan:
    holder = core_holder(view)
    if holder is None:
        return _decide(_look(view, spec, now), rendering, now)
    ring = build_keyring(holder, view.keys)
    if ring.engine is None or view.keys is None:
        return _without_keys(view, spec, ring, now)
    spec = msgspec.structs.replace(spec, cluster_keys=ring.engine)
    plan = _decide(_look(view, spec, now), rendering, now)
    rests = [rest for rest in (plan.requeue_after, view.keys.rest) if rest is not None]
    return msgspec.structs.replace(
        plan,
        stages=(ring.actions, *plan.stages) if ring.actions else plan.stages,
        events=(*view.keys.news, *plan.events),
        requeue_after=min(rests, default=None),
    )


def _decide(situation: _Situation, rendering: Rendering, now: datetime) -> Plan:
    if situation.state is PodState.SOUND or _waits(situation, now):
        return _keep(situation, now)
    return _replace(situation, rendering, now)


def _without_keys(view: CoreView, spec: EngineCoreSpec, ring: Keyring, now: datetime) -> Plan:
    """Say what is in the way of an engine without a pod; one that runs goes on."""
    state, name = view.core.status.keys, view.core.metadata.name
    if state is not None:
        had = ClusterKeys(
            secret_name=names.keys_secret_name(name, engine_generation(state)),
            public_key=_key_of_pod(view),
            allowed_config_map=names.allowed_keys_name(name),
        )
        spec = msgspec.structs.replace(spec, cluster_keys=had)
    reason, message = Reason.POD_PENDING, "its keys are being made"
    if view.keys_refused:
        reason, message = Reason.API_REFUSED, view.keys_refused
    elif ring.taken:
        reason = Reason.NAME_TAKEN
        message = f"not this engine's: {', '.join(ring.taken)}; delete them or rename the engine"
    situation = _look(view, spec, now)
    if situation.state is PodState.SOUND:
        return _keep(situation, now)
    return refuse_core(view, reason, message, now)


def _newest(view: CoreView) -> ObservedPod | None:
    mine = [p for p in view.pods if p.metadata.is_controlled_by(view.core.metadata.uid)]
    return max(mine, key=lambda pod: pod.epoch, default=None)


def _key_of_pod(view: CoreView) -> str:
    """Return the public key of the newest pod; empty where it has none."""
    newest = _newest(view)
    return newest.metadata.annotations.get(labels.SERVER_KEY, "") if newest is not None else ""


def diagnose(view: CoreView, current: ObservedPod | None, revision: str) -> PodState:
    """Name the state of the pod of the present epoch."""
    if current is None:
        return PodState.GONE if view.core.status.epoch else PodState.NEVER
    if current.spec.node_name and current.spec.node_name not in view.nodes:
        return PodState.NODE_LOST
    if current.terminating:
        return PodState.TERMINATING
    if current.ended:
        return PodState.ENDED
    return PodState.SOUND if current.revision == revision else PodState.OUTDATED


def _look(view: CoreView, spec: EngineCoreSpec, now: datetime) -> _Situation:
    status = view.core.status
    revision = compute_revision(spec)
    newest = _newest(view)
    current = newest if newest is not None and newest.epoch >= status.epoch else None
    state = diagnose(view, current, revision)
    failure = status.failure
    failed_now = (
        current is not None
        and state is PodState.ENDED
        and (failure is None or failure.epoch != current.epoch)
    )
    if failed_now and current is not None:
        failure = record_failure(current, status, current.revision, now)
    return _Situation(
        view=view,
        spec=spec,
        revision=revision,
        state=state,
        current=current,
        # Pods of a deleted namesake keep their names until they are gone.
        epoch=max([status.epoch, *(pod.epoch for pod in view.pods)]),
        failure=failure,
        failed_now=failed_now,
    )


def _unsettled_failure(situation: _Situation) -> Failure | None:
    """Return the failure that holds the next start back, if there is one.

    It does so until its pod was replaced, even where somebody deletes that pod; a changed spec
    starts anew.
    """
    failure = situation.failure
    if failure is None or situation.state in (PodState.SOUND, PodState.OUTDATED):
        return None
    if failure.revision != situation.revision or failure.epoch != situation.epoch:
        return None
    return failure


def _waits(situation: _Situation, now: datetime) -> bool:
    failure = _unsettled_failure(situation)
    if failure is None:
        return False
    policy = situation.spec.restart
    return given_up(failure, policy) or restart_time(failure, policy) > now


def _keep(situation: _Situation, now: datetime) -> Plan:
    """Leave the pod; tell what it does, and come back when it has to be looked at again."""
    view, current = situation.view, situation.current
    failure = _unsettled_failure(situation)
    sight = core_status.Sight(
        pod=None if failure is not None else current,
        epoch=situation.epoch,
        spec=situation.spec,
        restarts=view.core.status.restarts,
        failure=situation.failure,
        waiting=failure,
    )
    status = core_status.build_status(view, sight, now)
    requeue = None
    if failure is not None and not given_up(failure, situation.spec.restart):
        requeue = (restart_time(failure, situation.spec.restart) - now).total_seconds()
    ask = None
    if failure is None and current is not None:
        ask = facts_request(view, current, situation.spec.transport.http_port)
        requeue = FACTS_PERIOD if facts_pending(view, current) else next_look(current, now)
    stage = (*_retire_address(situation), *_remove_older(situation))
    news = (
        *(_failure_events(situation) or _ready_events(view, status)),
        *exposure_events(view, status),
    )
    return Plan(
        status=status,
        stages=(stage,) if stage else (),
        events=news,
        exposure=exposure_actions(view, situation.spec),
        ask=ask,
        requeue_after=requeue,
        urgent=bool(news) or not _is_starting(status),
    )


def _replace(situation: _Situation, rendering: Rendering, now: datetime) -> Plan:
    """Create the pod of the next epoch, after the old one lost its name."""
    view = situation.view
    core, epoch = view.core, situation.epoch + 1
    pod = build_pod(core.metadata, situation.spec, epoch, situation.revision, rendering)
    restarted = situation.state not in (PodState.NEVER, PodState.OUTDATED)
    sight = core_status.Sight(
        pod=None,
        epoch=epoch,
        spec=situation.spec,
        restarts=core.status.restarts + restarted,
        failure=situation.failure,
        waiting=None,
    )
    stages: tuple[tuple[Action, ...], ...] = (
        _retire_address(situation),
        _remove_current(situation),
        _remove_older(situation),
        (Create(pod),),
    )
    name = names.pod_name(core.metadata.name, epoch)
    old = names.pod_name(core.metadata.name, situation.epoch)
    replaced = Event(Reason.REPLACED, f"Replaced pod {old} by {name}: {situation.state.value}")
    events: tuple[Event, ...] = (replaced,)
    if situation.state is PodState.NEVER:
        # Of the engines of a cluster, the cluster tells.
        events = () if _of_a_cluster(view) else (Event(Reason.CREATED, f"Created pod {name}"),)
    return Plan(
        status=core_status.build_status(view, sight, now),
        stages=tuple(stage for stage in stages if stage),
        events=(*_failure_events(situation), *events),
        exposure=exposure_actions(view, situation.spec),
        urgent=situation.state is not PodState.NEVER,
    )


def _is_starting(status: EngineCoreStatus) -> bool:
    """Tell whether a status shows a first pod on its way, which nobody can use yet."""
    return status.epoch == 1 and not is_true(status.conditions, ConditionType.READY)


def _reference(pod: ObservedPod) -> ObjectRef:
    meta = pod.metadata
    return ObjectRef("Pod", meta.namespace, meta.name, meta.uid)


def _retire_address(situation: _Situation) -> tuple[Action, ...]:
    """Take the name from a pod that ends, before anything else."""
    pod = situation.current
    if pod is None or situation.state in (PodState.SOUND, PodState.NODE_LOST):
        return ()
    if labels.ADDRESSABLE not in pod.metadata.labels:
        return ()
    return (Patch(_reference(pod), {"metadata": {"labels": {labels.ADDRESSABLE: None}}}),)


def _remove_current(situation: _Situation) -> tuple[Action, ...]:
    pod = situation.current
    if pod is None or situation.state is PodState.TERMINATING:
        return ()
    if situation.state is PodState.NODE_LOST:
        return (Delete(_reference(pod), grace_seconds=0),)
    return () if pod.terminating else (Delete(_reference(pod)),)


def _remove_older(situation: _Situation) -> tuple[Action, ...]:
    """Delete pods of earlier epochs that nobody deleted yet, or whose node is gone."""
    view, found = situation.view, []
    for pod in view.pods:
        if pod is situation.current or not pod.metadata.is_controlled_by(view.core.metadata.uid):
            continue
        if pod.spec.node_name and pod.spec.node_name not in view.nodes:
            found.append(Delete(_reference(pod), grace_seconds=0))
        elif not pod.terminating:
            found.append(Delete(_reference(pod)))
    return tuple(found)


def _failure_events(situation: _Situation) -> tuple[Event, ...]:
    failure = situation.failure
    if not situation.failed_now or failure is None:
        return ()
    pod = names.pod_name(situation.view.core.metadata.name, failure.epoch)
    text = f"Pod {pod} failed ({failure.reason}), {failure.count} in a row: {failure.message}"
    events = [Event(Reason.POD_FAILED, text, "Warning")]
    if failure.revision == situation.revision and given_up(failure, situation.spec.restart):
        limit = f"Change the spec to try again. Given up after {describe_failures(failure)}"
        events.append(Event(Reason.RESTART_LIMIT, limit, "Warning"))
    return tuple(events)


def _of_a_cluster(view: CoreView) -> bool:
    return view.core.metadata.controller_name(labels.CLUSTER_KIND) != ""


def _ready_events(view: CoreView, after: EngineCoreStatus) -> tuple[Event, ...]:
    """Tell when an engine becomes Ready, and when it ceases to be so in the same epoch.

    The first start of a cluster's engine is no news: a large cluster has many.
    """
    before = view.core.status
    was = is_true(before.conditions, ConditionType.READY)
    now = is_true(after.conditions, ConditionType.READY)
    if now and not was and (after.epoch > 1 or not _of_a_cluster(view)):
        return (Event(Reason.ENGINE_READY, f"Epoch {after.epoch} is ready"),)
    if was and not now and before.epoch == after.epoch:
        text = f"Epoch {after.epoch} is no longer ready"
        return (Event(Reason.ENGINE_NOT_READY, text, "Warning"),)
    return ()


def refuse_core(view: CoreView, reason: Reason, message: str, now: datetime) -> Plan:
    """Leave everything as it is and say why: a bad spec, or an action the API refused."""
    status = core_status.build_refusal(view, reason, message, now)
    told = any(c.reason == reason and c.message == message for c in view.core.status.conditions)
    events = () if told else (Event(reason, message, "Warning"),)
    return Plan(status=status, events=events)


def refuse_exposure(view: CoreView, plan: Plan, message: str, now: datetime) -> Plan:
    """Say that the API server refused what was to expose an engine; all else is as planned."""
    assert isinstance(plan.status, EngineCoreStatus)
    status = core_status.build_hidden(view, plan.status, message, now)
    before = find_condition(view.core.status.conditions, ConditionType.EXPOSED)
    told = before is not None and (before.reason, before.message) == (Reason.API_REFUSED, message)
    events = () if told else (Event(Reason.API_REFUSED, message, "Warning"),)
    return Plan(status=status, events=events)
