"""Write Events about the objects reconciled."""

from collections.abc import Callable
from datetime import datetime
from typing import Final

from enginecore_operator.api.conditions import precise_timestamp
from enginecore_operator.api.labels import FIELD_MANAGER
from enginecore_operator.kube.client import Document, KubeClient
from enginecore_operator.kube.resources import EVENTS, Resource
from enginecore_operator.plan.actions import Event
from enginecore_operator.plan.observed import ObjectMeta

NOTE_LENGTH: Final = 1000
"""The API takes notes of up to 1024 bytes."""
NOTE_HEAD: Final = 250


class EventWriter:
    """Creates one Event object for each thing to tell."""

    def __init__(
        self,
        client: KubeClient,
        instance: str,
        *,
        now: Callable[[], datetime],
        new_id: Callable[[], str],
    ) -> None:
        self._client = client
        self._instance = instance
        self._now = now
        self._new_id = new_id

    async def write(self, resource: Resource, about: ObjectMeta, event: Event) -> None:
        """Write one Event. Raises KubeError."""
        manifest: Document = {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {"namespace": about.namespace, "name": f"{about.name}.{self._new_id()}"},
            "eventTime": precise_timestamp(self._now()),
            "type": event.type,
            "reason": event.reason.value,
            "action": "Reconcile",
            "note": shorten(event.message),
            "reportingController": f"enginecore.dev/{FIELD_MANAGER}",
            "reportingInstance": self._instance,
            "regarding": {
                "apiVersion": resource.api_version,
                "kind": resource.kind,
                "namespace": about.namespace,
                "name": about.name,
                "uid": about.uid,
                "resourceVersion": about.resource_version,
            },
        }
        await self._client.create(EVENTS, manifest)


def shorten(note: str) -> str:
    """Cut the middle out of a long note: its end holds the engine's last words."""
    data = note.encode()
    if len(data) <= NOTE_LENGTH:
        return note
    head = data[:NOTE_HEAD].decode(errors="ignore")
    tail = data[-(NOTE_LENGTH - NOTE_HEAD - 5) :].decode(errors="ignore")
    return f"{head} … {tail}"
