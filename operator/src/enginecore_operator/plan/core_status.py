"""The status of an EngineCore, from what is seen of it."""

from datetime import datetime

import msgspec

from enginecore_operator.api import labels
from enginecore_operator.api.conditions import ConditionType, Reason
from enginecore_operator.api.status import EngineCoreStatus, Failure, PodReference
from enginecore_operator.api.v1alpha1 import EngineCoreSpec
from enginecore_operator.plan import names
from enginecore_operator.plan.exposure import find_exposure
from enginecore_operator.plan.facts import current_reading, is_simulated, simulated_message
from enginecore_operator.plan.observed import CoreView, ObservedPod
from enginecore_operator.plan.obstacles import Obstacle, find_obstacle, waiting_text
from enginecore_operator.plan.restart import describe_failures, given_up, restart_time
from enginecore_operator.plan.verdicts import Verdict, build_conditions, replace_condition
from enginecore_wire.contract import EngineFacts
from enginecore_wire.control import Phase

PENDING = "Pending"
BACK_OFF = "BackOff"


class Sight(msgspec.Struct, frozen=True, kw_only=True):
    """What a status speaks of. `pod` is None while there is none that could serve;
    `waiting` is the failure that holds the next start back.
    """

    pod: ObservedPod | None
    epoch: int
    spec: EngineCoreSpec
    restarts: int
    failure: Failure | None
    waiting: Failure | None


def build_status(view: CoreView, sight: Sight, now: datetime) -> EngineCoreStatus:
    """Build the whole status."""
    pod, spec = sight.pod, sight.spec
    ip = pod.status.pod_ip if pod is not None and not pod.terminating else ""
    verdicts = {
        ConditionType.READY: _ready(view, sight),
        ConditionType.SCHEDULED: _scheduled(view, sight),
        ConditionType.FACTS_KNOWN: _facts_known(view, sight),
    }
    exposure = find_exposure(view, spec, pod)
    if exposure.verdict is not None:
        verdicts[ConditionType.EXPOSED] = exposure.verdict
    return EngineCoreStatus(
        observed_generation=view.core.metadata.generation,
        phase=_phase(view, sight),
        epoch=sight.epoch,
        input_address=names.tcp_address(ip, spec.transport.input_port),
        output_address=names.tcp_address(ip, spec.transport.output_port),
        server_key=pod.metadata.annotations.get(labels.SERVER_KEY, "") if pod and ip else "",
        keys=view.keys.state if view.keys is not None else view.core.status.keys,
        exposed_input_address=exposure.input_address,
        exposed_output_address=exposure.output_address,
        pod=_pod_reference(view, sight),
        restarts=sight.restarts,
        failure=sight.failure,
        engine=_engine(view, sight),
        conditions=build_conditions(
            view.core.status.conditions,
            verdicts,
            now=now,
            generation=view.core.metadata.generation,
        ),
    )


def build_refusal(view: CoreView, reason: Reason, message: str, now: datetime) -> EngineCoreStatus:
    """Build the status of an EngineCore that cannot be served: all but Ready stays."""
    before, generation = view.core.status, view.core.metadata.generation
    return msgspec.structs.replace(
        before,
        observed_generation=generation,
        conditions=replace_condition(
            before.conditions,
            ConditionType.READY,
            Verdict(False, reason, message),
            now=now,
            generation=generation,
        ),
    )


def build_hidden(
    view: CoreView, planned: EngineCoreStatus, message: str, now: datetime
) -> EngineCoreStatus:
    """Build the status of an EngineCore whose Service the API server refuses."""
    return msgspec.structs.replace(
        planned,
        exposed_input_address="",
        exposed_output_address="",
        conditions=replace_condition(
            view.core.status.conditions,
            ConditionType.EXPOSED,
            Verdict(False, Reason.API_REFUSED, message),
            now=now,
            generation=view.core.metadata.generation,
            planned=planned.conditions,
        ),
    )


def _pod_reference(view: CoreView, sight: Sight) -> PodReference:
    if sight.pod is None:
        return PodReference(name=names.pod_name(view.core.metadata.name, sight.epoch))
    pod = sight.pod
    return PodReference(pod.metadata.name, pod.status.pod_ip, pod.spec.node_name)


def _ready(view: CoreView, sight: Sight) -> Verdict:
    pod, failure = sight.pod, sight.waiting
    if failure is not None:
        tale = describe_failures(failure)
        if given_up(failure, sight.spec.restart):
            return Verdict(False, Reason.RESTART_LIMIT, f"given up after {tale}")
        start = restart_time(failure, sight.spec.restart).strftime("%H:%M:%S UTC")
        return Verdict(False, Reason.BACK_OFF, f"starts again at {start}; {tale}")
    if pod is None:
        return Verdict(False, Reason.POD_PENDING, "the pod is being made")
    if pod.ready:
        return Verdict(True, Reason.POD_READY, f"pod {pod.metadata.name} is ready")
    if pod.terminating:
        return Verdict(False, Reason.DRAINING, "the pod is being deleted")
    if pod.status.phase != "Running":
        found = _obstacle(view, sight)
        if found is not None and (before := _waits_for(view, pod, found)):
            return Verdict(False, Reason.POD_PENDING, f"waits for pod {before} to end")
        if found is not None:
            return Verdict(False, found.reason, found.message)
        text = waiting_text(pod) or "the pod is not running yet"
        return Verdict(False, Reason.POD_PENDING, text)
    return Verdict(False, Reason.POD_NOT_READY, _start_text(view, pod))


def _start_text(view: CoreView, pod: ObservedPod) -> str:
    """Say what an engine does that runs and is not ready, as far as it has told."""
    reading = current_reading(view, pod)
    told = reading.status if reading is not None else None
    words = (told.message or told.reason) if told is not None and told.phase != Phase.READY else ""
    tail = f": {told.phase}: {words}" if told is not None and words else ""
    return f"the engine is not ready yet{tail}"


def _obstacle(view: CoreView, sight: Sight) -> Obstacle | None:
    pod = sight.pod
    if pod is None or pod.status.phase == "Running":
        return None
    return find_obstacle(pod, sight.spec.accelerator, view.warnings.get(pod.metadata.uid, ""))


def _waits_for(view: CoreView, pod: ObservedPod, found: Obstacle) -> str:
    """Name the engine's earlier pod that still holds what the scheduler finds no room for."""
    if found.reason is not Reason.UNSCHEDULABLE:
        return ""
    holders = (p.metadata.name for p in view.pods if p is not pod and p.terminating)
    return next(holders, "")


def _scheduled(view: CoreView, sight: Sight) -> Verdict:
    pod = sight.pod
    if pod is None:
        return Verdict(False, Reason.POD_MISSING, "there is no pod")
    if pod.spec.node_name:
        return Verdict(True, Reason.POD_SCHEDULED, f"on node {pod.spec.node_name}")
    found = _obstacle(view, sight)
    if found is not None and (before := _waits_for(view, pod, found)):
        return Verdict(False, Reason.NOT_SCHEDULED, f"waits for pod {before} to end")
    if found is not None and found.reason is Reason.UNSCHEDULABLE:
        return Verdict(False, Reason.UNSCHEDULABLE, found.message)
    return Verdict(False, Reason.NOT_SCHEDULED, "the scheduler has not decided yet")


def _facts_known(view: CoreView, sight: Sight) -> Verdict:
    pod = sight.pod
    if _engine(view, sight) is not None:
        return Verdict(True, Reason.FACTS_READ, "the engine told them on its status page")
    if pod is None:
        return Verdict(False, Reason.POD_MISSING, "there is no pod")
    if is_simulated(view, pod):
        return Verdict(False, Reason.SIMULATED_NODE, simulated_message(pod.spec.node_name))
    reading = current_reading(view, pod)
    if reading is not None and reading.error:
        return Verdict(False, Reason.NOT_ANSWERING, reading.error)
    return Verdict(False, Reason.NOT_LOADED, "the engine has not told yet")


def _engine(view: CoreView, sight: Sight) -> EngineFacts | None:
    """Return the facts of the present epoch; those of another process do not count."""
    pod = sight.pod
    if pod is None:
        return None
    reading = current_reading(view, pod)
    if reading is not None and reading.status is not None and reading.status.engine is not None:
        return reading.status.engine
    before = view.core.status
    return before.engine if before.epoch == sight.epoch else None


def _phase(view: CoreView, sight: Sight) -> str:
    pod = sight.pod
    if sight.waiting is not None:
        return Phase.FAILED if given_up(sight.waiting, sight.spec.restart) else BACK_OFF
    if pod is None:
        return PENDING
    if pod.terminating:
        return Phase.DRAINING
    if pod.ready:
        return Phase.READY
    if pod.status.phase != "Running":
        return PENDING
    reading = current_reading(view, pod)
    if reading is None or reading.status is None:
        return Phase.STARTING
    # The pod's condition decides: between the engine's word and the kubelet's it still loads.
    told = reading.status.phase
    return Phase.LOADING if told == Phase.READY else told
