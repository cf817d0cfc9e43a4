"""What keeps a pod from starting: by its status, and by what its kubelet reports."""

from datetime import datetime
from typing import Final, NamedTuple

from enginecore_operator.api.conditions import Reason, parse_timestamp
from enginecore_operator.api.devices import Accelerator
from enginecore_operator.plan.observed import ObservedPod, Waiting

SLOW_SECONDS: Final = 5.0
"""A pod that its kubelet prepares for this long may have told why only in an Event."""
LONGEST_REST: Final = 60.0
"""Seconds between two looks at such a pod: as long as it took already, at most this."""

NO_FREE_PORTS: Final = "free ports"
"""What the scheduler says where another pod has taken a port on the node's network."""
PORTS_REMEDY: Final = (
    "On the node's network (podTemplate.spec.hostNetwork) engines of one cluster need a node each, "
    "and engines of two clusters on one node different ports: set spec.transport.inputPort, "
    "outputPort and httpPort"
)

_ON_ITS_WAY: Final = ("ContainerCreating", "PodInitializing")


class Obstacle(NamedTuple):
    """Why a pod does not start, which does not mend itself in the usual course."""

    reason: Reason
    message: str


def find_obstacle(pod: ObservedPod, accelerator: Accelerator, warning: str) -> Obstacle | None:
    """Return what keeps a pod from starting; None while it starts as pods do.

    Args:
        pod: a pod that does not run yet.
        accelerator: what its engine asks for.
        warning: what its kubelet reported of it last; empty: nothing.
    """
    refusal = pod.condition("PodScheduled")
    if not pod.spec.node_name and refusal is not None and refusal.reason == "Unschedulable":
        words = refusal.message or "no node takes the pod"
        return Obstacle(Reason.UNSCHEDULABLE, _with_remedy(words, accelerator))
    if _is_refused(pod):
        return Obstacle(Reason.CANNOT_START, waiting_text(pod))
    if warning and pod.spec.node_name:
        return Obstacle(Reason.CANNOT_START, warning)
    return None


def waiting_text(pod: ObservedPod) -> str:
    """Say for what the pod's first waiting container waits; an empty text where none does."""
    for name, waiting in _waiting(pod):
        text = f": {waiting.message}" if waiting.message else ""
        return f"container {name}: {waiting.reason}{text}"
    return ""


def _waiting(pod: ObservedPod) -> list[tuple[str, Waiting]]:
    """Return name and state of the containers that wait, those that are refused first."""
    every = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    found = [(c.name, c.state.waiting) for c in every if c.state.waiting and c.state.waiting.reason]
    return sorted(found, key=lambda item: item[1].reason in _ON_ITS_WAY)


def _is_refused(pod: ObservedPod) -> bool:
    return any(waiting.reason not in _ON_ITS_WAY for _, waiting in _waiting(pod))


def seconds_in_preparation(pod: ObservedPod, now: datetime) -> float | None:
    """Return for how long a kubelet has prepared a pod's volumes and network; else None."""
    status = pod.status
    if pod.terminating or status.phase != "Pending" or not status.start_time:
        return None
    if _is_refused(pod):
        return None
    return max((now - parse_timestamp(status.start_time)).total_seconds(), 0.0)


def is_slow(pod: ObservedPod, now: datetime) -> bool:
    """Tell whether to ask what the kubelet reports of a pod."""
    seconds = seconds_in_preparation(pod, now)
    return seconds is not None and seconds >= SLOW_SECONDS


def next_look(pod: ObservedPod, now: datetime) -> float | None:
    """Return after how many seconds to look again at a pod in preparation; else None."""
    seconds = seconds_in_preparation(pod, now)
    if seconds is None:
        return None
    if seconds < SLOW_SECONDS:
        return SLOW_SECONDS - seconds
    return min(seconds, LONGEST_REST)


def _with_remedy(message: str, accelerator: Accelerator) -> str:
    if NO_FREE_PORTS in message:
        return f"{message} {PORTS_REMEDY}"
    if accelerator.count == 0 or f"Insufficient {accelerator.name}" not in message:
        return message
    return f"{message} For an engine on CPU only, set spec.accelerator.count: 0"
