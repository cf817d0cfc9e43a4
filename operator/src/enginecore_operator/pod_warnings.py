"""What kubelets report of pods that do not start: a pod's status has no word of its volumes."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from enginecore_operator.kube.client import KubeClient
from enginecore_operator.kube.errors import KubeError
from enginecore_operator.kube.resources import EVENTS
from enginecore_operator.plan.observed import ObservedPod

FRESH_SECONDS: Final = 4.0
"""For so long one answer serves all pods of its namespace."""
WARNINGS_OF_PODS: Final = "type=Warning,regarding.kind=Pod"
_OF_THE_SCHEDULER: Final = "FailedScheduling"
_LENGTH: Final = 600

logger = logging.getLogger(__name__)


class _Regarding(msgspec.Struct, frozen=True):
    uid: str = ""


class _Series(msgspec.Struct, frozen=True, rename="camel"):
    last_observed_time: str = ""


class _Meta(msgspec.Struct, frozen=True, rename="camel"):
    creation_timestamp: str = ""


class _Event(msgspec.Struct, frozen=True, rename="camel"):
    reason: str = ""
    note: str = ""
    regarding: _Regarding = _Regarding()
    series: _Series | None = None
    deprecated_last_timestamp: str | None = None
    metadata: _Meta = _Meta()

    @property
    def at(self) -> str:
        """When it was seen last, to the second: texts that sort as times do."""
        series = self.series.last_observed_time if self.series else ""
        return (series or self.deprecated_last_timestamp or self.metadata.creation_timestamp)[:19]


class PodWarnings:
    """Reads the Warning events of pods, at most once in a while for each namespace."""

    def __init__(self, client: KubeClient, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self._lock = asyncio.Lock()
        self._answers: dict[str, tuple[float, dict[str, str]]] = {}

    async def latest(self, pods: Sequence[ObservedPod]) -> dict[str, str]:
        """Return uid → the latest warning of these pods of one namespace."""
        if not pods:
            return {}
        namespace = pods[0].metadata.namespace
        async with self._lock:
            at, found = self._answers.get(namespace, (float("-inf"), {}))
            if self._clock() - at >= FRESH_SECONDS:
                found = await self._read(namespace)
                self._answers[namespace] = self._clock(), found
        uids = {pod.metadata.uid for pod in pods}
        return {uid: text for uid, text in found.items() if uid in uids}

    async def _read(self, namespace: str) -> dict[str, str]:
        try:
            listing = await self._client.list_all(EVENTS, namespace, fields=WARNINGS_OF_PODS)
        except KubeError as error:
            # The status can do without; what it says is then less exact.
            logger.warning("events of namespace %s not read: %s", namespace, error)
            return {}
        return newest_warnings(listing.items)


def newest_warnings(events: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return uid of the pod → `reason: note` of the latest of its events, the scheduler's apart."""
    newest: dict[str, _Event] = {}
    for event in msgspec.convert(events, list[_Event]):
        before = newest.get(event.regarding.uid)
        if event.reason == _OF_THE_SCHEDULER or (before is not None and before.at > event.at):
            continue
        newest[event.regarding.uid] = event
    return {uid: f"{event.reason}: {event.note}"[:_LENGTH] for uid, event in newest.items()}
