"""What is written of an object's state: its status, and events about it."""

import logging
from collections.abc import Callable
from typing import Final

import msgspec

from enginecore_operator.kube.cache import Cache
from enginecore_operator.kube.client import KubeClient
from enginecore_operator.kube.errors import NotFoundError
from enginecore_operator.kube.events import EventWriter, shorten
from enginecore_operator.kube.resources import BY_KIND
from enginecore_operator.plan.actions import Event, Plan
from enginecore_operator.plan.observed import ClusterView, CoreView
from enginecore_operator.workqueue import Key, WorkQueue

STATUS_DELAY: Final = 0.5
"""Seconds a status that is not urgent waits for a later one."""

logger = logging.getLogger(__name__)


class StatusWriter:
    """Writes a status once per pass, if it changed; one that is not urgent may wait.

    Args:
        client: writes.
        cache: gets what was written.
        events: posts events.
        queue: gets keys whose status waits.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        client: KubeClient,
        cache: Cache,
        events: EventWriter,
        queue: WorkQueue,
        clock: Callable[[], float],
    ) -> None:
        self._client = client
        self._cache = cache
        self._events = events
        self._queue = queue
        self._clock = clock
        self._deferred: dict[Key, float] = {}

    async def settle(self, key: Key, view: ClusterView | CoreView, plan: Plan) -> None:
        """Write the plan's status if it changed, then tell its events.

        Raises:
            KubeError: the status is not written; nothing is told.
        """
        observed = view.cluster if isinstance(view, ClusterView) else view.core
        if plan.status == observed.status:
            self._deferred.pop(key, None)
        elif plan.urgent or self._is_overdue(key):
            self._deferred.pop(key, None)
            await self._write(key, plan.status)
        for event in plan.events:
            self._tell(key, view, event)

    def forget(self, key: Key) -> None:
        """Drop what is known of an object that is gone."""
        self._deferred.pop(key, None)

    def clear(self) -> None:
        """Drop what is known of all objects: somebody else leads now."""
        self._deferred.clear()

    def _is_overdue(self, key: Key) -> bool:
        """Tell whether a status that may wait has waited long enough; else come back."""
        since = self._deferred.setdefault(key, self._clock())
        rest = since + STATUS_DELAY - self._clock()
        if rest <= 0:
            return True
        self._queue.add_after(key, rest)
        return False

    async def _write(self, key: Key, status: msgspec.Struct) -> None:
        body = {"status": msgspec.to_builtins(status)}
        resource = BY_KIND[key.kind]
        try:
            raw = await self._client.patch(resource, key.namespace, key.name, body, "status")
        except NotFoundError:
            self._cache.remove(key.kind, key.namespace, key.name)
        else:
            self._cache.put(key.kind, raw)

    def _tell(self, key: Key, view: ClusterView | CoreView, event: Event) -> None:
        about = view.cluster.metadata if isinstance(view, ClusterView) else view.core.metadata
        log = logger.warning if event.type == "Warning" else logger.info
        log("%s: %s: %s", key, event.reason.value, shorten(event.message))
        self._events.post(BY_KIND[key.kind], about, event)
