"""Write Events about the objects reconciled."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from datetime import datetime
from typing import Final

from enginecore_operator.api.conditions import precise_timestamp
from enginecore_operator.api.labels import FIELD_MANAGER
from enginecore_operator.kube.client import Document, KubeClient
from enginecore_operator.kube.errors import KubeError
from enginecore_operator.kube.resources import EVENTS, Resource
from enginecore_operator.plan.actions import Event
from enginecore_operator.plan.observed import ObjectMeta

NOTE_LENGTH: Final = 1000
"""The API takes notes of up to 1024 bytes."""
NOTE_HEAD: Final = 250
QUEUE_LENGTH: Final = 10_000
FLUSH_SECONDS: Final = 2.0

logger = logging.getLogger(__name__)


class EventWriter:
    """Creates one Event object for each thing to tell, behind the passes.

    What an Event says is in a status, too: one that cannot be written is dropped.
    """

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
        self._queue: asyncio.Queue[Document] = asyncio.Queue(QUEUE_LENGTH)

    def post(self, resource: Resource, about: ObjectMeta, event: Event) -> None:
        """Take an Event to be written soon."""
        try:
            self._queue.put_nowait(self._build(resource, about, event))
        except asyncio.QueueFull:
            logger.warning("event dropped, too many wait: %s %s", about.name, event.message)

    async def run(self) -> None:
        """Write for ever."""
        while True:
            await self._write(await self._queue.get())

    async def flush(self) -> None:
        """Write what still waits, if that is soon done."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_SECONDS):
                while not self._queue.empty():
                    await self._write(self._queue.get_nowait())

    async def _write(self, manifest: Document) -> None:
        try:
            await self._client.create(EVENTS, manifest)
        except KubeError as error:
            logger.warning("event not written: %s: %s", manifest["note"], error)

    def _build(self, resource: Resource, about: ObjectMeta, event: Event) -> Document:
        return {
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


def shorten(note: str) -> str:
    """Cut the middle out of a long note: its end holds the engine's last words."""
    data = note.encode()
    if len(data) <= NOTE_LENGTH:
        return note
    head = data[:NOTE_HEAD].decode(errors="ignore")
    tail = data[-(NOTE_LENGTH - NOTE_HEAD - 5) :].decode(errors="ignore")
    return f"{head} … {tail}"
