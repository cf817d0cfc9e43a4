"""Register one kopf handler for each kind watched.

Handlers of raw events need no finalizer, write no annotation and keep no state in objects.
"""

import logging
from collections.abc import Callable
from typing import Any, Final

import kopf
import msgspec

from enginecore_operator.handlers.stateless import NoDiffBase, NoProgress
from enginecore_operator.kube.cache import Cache
from enginecore_operator.kube.resources import WATCHED, Resource
from enginecore_operator.metrics import OperatorMetrics

SERVER_SECONDS: Final = 240
"""How long the server keeps one watch open."""
CLIENT_SECONDS: Final = 270.0
"""After this a watch is given up even where the server says nothing."""
CONNECT_SECONDS: Final = 10.0

logger = logging.getLogger(__name__)


def build_registry(cache: Cache, metrics: OperatorMetrics) -> kopf.OperatorRegistry:
    """Build the registry of all handlers."""
    registry = kopf.OperatorRegistry()
    for resource in WATCHED:
        kopf.on.event(
            resource.group, resource.version, resource.plural, registry=registry, id="observe"
        )(_observer(resource, cache, metrics))
    return registry


def build_settings() -> kopf.OperatorSettings:
    """Build kopf's settings: watches with timeouts, and nothing written anywhere."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.persistence.diffbase_storage = NoDiffBase()
    settings.persistence.progress_storage = NoProgress()
    settings.watching.server_timeout = SERVER_SECONDS
    settings.watching.client_timeout = CLIENT_SECONDS
    settings.watching.connect_timeout = CONNECT_SECONDS
    settings.networking.connect_timeout = CONNECT_SECONDS
    for resource in WATCHED:
        if resource.selector:
            place = (resource.group, resource.version, resource.plural)
            settings.watching.label_selectors[place] = resource.selector
    return settings


def _observer(resource: Resource, cache: Cache, metrics: OperatorMetrics) -> Callable[..., Any]:
    kind = resource.kind

    async def observe(event: Any, **_: Any) -> None:
        raw = event["object"]
        metrics.watch_events.labels(kind).inc()
        meta = raw["metadata"]
        if event["type"] == "DELETED":
            cache.remove(kind, meta.get("namespace", ""), meta["name"], meta["uid"])
            return
        try:
            cache.put(kind, raw)
        except msgspec.ValidationError as error:
            logger.error("%s %s cannot be read: %s", kind, meta["name"], error)

    return observe
