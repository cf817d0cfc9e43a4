"""The operator as one running whole: Lease, watches, loop, resync, HTTP endpoints."""

import asyncio
import logging
import signal
import time
import uuid
from collections.abc import Coroutine
from datetime import UTC, datetime
from typing import Any, Final

import aiohttp
import kopf
from kubernetes.aio import client as aio
from prometheus_client import CollectorRegistry

from enginecore_curve.keys import new_key_pair
from enginecore_operator.handlers.watches import build_registry, build_settings
from enginecore_operator.health import Health
from enginecore_operator.http import serve_http
from enginecore_operator.kube.client import KubeClient
from enginecore_operator.kube.errors import KubeError
from enginecore_operator.kube.events import EventWriter
from enginecore_operator.kube.lease import Elector
from enginecore_operator.kube.resources import CLUSTERS, CORES, WATCHED, Resource
from enginecore_operator.loop import Reconciler
from enginecore_operator.metrics import OperatorMetrics
from enginecore_operator.settings import Settings
from enginecore_operator.status_reader import StatusReader

SETTLE_SECONDS: Final = 2.0
"""Between a list and its comparison with the cache: events under way arrive meanwhile."""
RETRY_SECONDS: Final = 2.0

logger = logging.getLogger(__name__)


def utc_now() -> datetime:
    """Return the time of day in UTC."""
    return datetime.now(UTC)


class OperatorService:
    """Everything that runs in one operator process."""

    def __init__(self, settings: Settings, api: aio.ApiClient) -> None:
        self._settings = settings
        self._configuration: aio.Configuration = api.configuration
        self.registry = CollectorRegistry()
        self.metrics = OperatorMetrics(self.registry)
        self.health = Health(time.monotonic, settings.resync_seconds)
        self._elector = Elector(
            settings.namespace,
            settings.lease_name,
            settings.identity,
            clock=time.monotonic,
            now=utc_now,
            on_served=self.health.lease_served,
        )
        self._client = KubeClient(api, observer=self.metrics, may_write=self._elector.may_write)
        self._leading = asyncio.Event()
        self._standing_by = asyncio.Event()

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT. Raises what a part of it dies of."""
        async with aiohttp.ClientSession(trust_env=False) as session:
            events = self._build_events()
            reconciler = self._build_reconciler(session, events)
            server = await serve_http(
                self.registry, self.health, self._settings.http_host, self._settings.http_port
            )
            logger.info("http on %s", server.addresses)
            parts = [
                _signalled(),
                self._serve_watches(reconciler),
                self._elector.run(self._client, self._lease_changed(reconciler)),
                self._lead(reconciler),
                self._resync(reconciler),
                reconciler.run(self._settings.concurrency),
                events.run(),
            ]
            try:
                await _until_first_ends(parts)
            finally:
                reconciler.stop()
                await events.flush()
                await self._elector.release(self._client)
                await server.cleanup()
                await self._client.close()

    def _build_events(self) -> EventWriter:
        return EventWriter(
            self._client,
            self._settings.identity[:128],
            now=utc_now,
            new_id=lambda: uuid.uuid4().hex[:16],
        )

    def _build_reconciler(self, session: aiohttp.ClientSession, events: EventWriter) -> Reconciler:
        return Reconciler(
            self._client,
            StatusReader(session, self.metrics),
            events,
            self.metrics,
            self._settings.rendering,
            new_pair=new_key_pair,
            key_lag=self._settings.key_lag_seconds,
            clock=time.monotonic,
            now=utc_now,
        )

    async def _serve_watches(self, reconciler: Reconciler) -> None:
        """Run kopf, once the CRDs are there: it looks for them only at its start."""
        await self._await_crds()
        registry = build_registry(reconciler.cache, self.metrics)

        @kopf.on.login(registry=registry)
        async def login(**_: Any) -> kopf.ConnectionInfo:
            return await _read_login(self._configuration)

        namespaces = self._settings.served_namespaces
        await kopf.operator(
            registry=registry,
            settings=build_settings(),
            standalone=True,
            clusterwide=not namespaces,
            namespaces=namespaces,
        )

    async def _await_crds(self) -> None:
        for resource in (CLUSTERS, CORES):
            while True:
                try:
                    await self._list(resource)
                    break
                except KubeError as error:
                    logger.warning("waiting for %s: %s", resource.plural, error)
                    await asyncio.sleep(RETRY_SECONDS)

    def _lease_changed(self, reconciler: Reconciler) -> Any:
        def changed(leads: bool) -> None:
            self.metrics.leader.set(leads)
            logger.info("this process %s", "leads" if leads else "stands by")
            if leads:
                self._standing_by.clear()
                self._leading.set()
            else:
                self._leading.clear()
                self._standing_by.set()
                reconciler.stop()

        return changed

    async def _lead(self, reconciler: Reconciler) -> None:
        """Whenever this process comes to lead: fill the cache, then begin."""
        while True:
            await self._leading.wait()
            try:
                await self._refill(reconciler)
            except KubeError as error:
                logger.warning("the cache cannot be filled: %s", error)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if self._leading.is_set():
                reconciler.start()
            await self._standing_by.wait()

    async def _resync(self, reconciler: Reconciler) -> None:
        """Compare the cache with the API server now and then, and look at everything."""
        while True:
            await asyncio.sleep(self._settings.resync_seconds)
            try:
                missed = await self._refill(reconciler, settle=SETTLE_SECONDS)
            except KubeError as error:
                logger.warning("resync failed: %s", error)
                continue
            self.health.resynced(missed)
            reconciler.wake_all()

    async def _refill(self, reconciler: Reconciler, *, settle: float = 0.0) -> list[str]:
        """List everything into the cache; return the kinds of which the watch missed changes."""
        listed = [(resource, await self._list(resource)) for resource in WATCHED]
        if settle:
            await asyncio.sleep(settle)
        missed = []
        for resource, listings in listed:
            news = 0
            for items, version, namespace in listings:
                news += reconciler.cache.replace(resource.kind, items, version, namespace=namespace)
            if settle and news:
                logger.warning("the watch of %s missed %d changes", resource.plural, news)
                self.metrics.watch_missed.labels(resource.kind).inc(news)
                missed.append(resource.kind)
        self.health.listed()
        return missed

    async def _list(self, resource: Resource) -> list[tuple[list[dict[str, Any]], str, str]]:
        namespaces = self._settings.served_namespaces if resource.namespaced else ()
        found = []
        for namespace in namespaces or ("",):
            listing = await self._client.list_all(resource, namespace)
            found.append((listing.items, listing.resource_version, namespace))
        return found


async def _signalled() -> None:
    """Return at SIGTERM or SIGINT; once kopf runs, it takes the signals and ends by them."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    await stopped.wait()


async def _until_first_ends(parts: list[Coroutine[Any, Any, None]]) -> None:
    """Run parts side by side until one ends or fails; then end the others."""
    tasks = [asyncio.create_task(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        if not task.cancelled():
            task.result()


async def _read_login(configuration: aio.Configuration) -> kopf.ConnectionInfo:
    """Hand the way to the API server, with a token of now, over to kopf's own HTTP client."""
    header = await configuration.get_api_key_with_prefix("BearerToken") or ""
    scheme, _, token = header.partition(" ")
    return kopf.ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        insecure=not configuration.verify_ssl,
        scheme=scheme.capitalize() if token else None,
        token=token or None,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
    )
