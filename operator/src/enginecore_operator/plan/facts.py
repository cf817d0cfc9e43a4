"""Decide when to ask a pod for its status page."""

from typing import Final

from enginecore_operator.api import labels
from enginecore_operator.plan import names
from enginecore_operator.plan.actions import Ask
from enginecore_operator.plan.observed import CoreView, FactsReading, ObservedPod
from enginecore_wire.contract import STATUS_PATH
from enginecore_wire.control import Phase

FACTS_PERIOD: Final = 2.0
"""Seconds between two looks at the status page of an engine that is not ready."""


def is_simulated(view: CoreView, pod: ObservedPod) -> bool:
    """Tell whether the pod's node is simulated: it is never dialled."""
    node = view.nodes.get(pod.spec.node_name)
    return node is not None and node.simulated


def current_reading(view: CoreView, pod: ObservedPod) -> FactsReading | None:
    """Return the latest reading if it is of this very pod."""
    reading = view.reading
    return reading if reading is not None and reading.pod_uid == pod.metadata.uid else None


def facts_known(view: CoreView, pod: ObservedPod) -> bool:
    """Tell whether the engine of this pod has said all there is to know."""
    reading = current_reading(view, pod)
    if reading is not None and reading.status is not None:
        return reading.status.engine is not None and reading.status.phase == Phase.READY
    status = view.core.status
    return pod.ready and status.epoch == pod.epoch and status.engine is not None


def facts_pending(view: CoreView, pod: ObservedPod) -> bool:
    """Tell whether the pod has to be asked, now or again."""
    if not pod.status.pod_ip or pod.status.phase != "Running" or is_simulated(view, pod):
        return False
    reading = current_reading(view, pod)
    flipped = reading is not None and reading.pod_ready != pod.ready
    return flipped or not facts_known(view, pod)


def facts_request(view: CoreView, pod: ObservedPod, http_port: int) -> Ask | None:
    """Return what to ask now. The one who asks keeps two questions apart in time."""
    if not facts_pending(view, pod):
        return None
    host = names.tcp_address(pod.status.pod_ip, http_port).removeprefix("tcp://")
    return Ask(pod.metadata.uid, pod.ready, f"http://{host}{STATUS_PATH}")


def simulated_message(node: str) -> str:
    """Say why a pod on this node is not asked."""
    return f"node {node} is simulated (annotation {labels.KWOK_NODE})"
