"""Leader election with a Lease: one process writes, the others stand by."""

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from enginecore_operator.api.conditions import precise_timestamp
from enginecore_operator.kube.client import Document, KubeClient
from enginecore_operator.kube.errors import (
    AlreadyExistsError,
    ConflictError,
    KubeError,
    NotFoundError,
)
from enginecore_operator.kube.resources import LEASES

DURATION_SECONDS: Final = 10
RENEW_DEADLINE_SECONDS: Final = 6.0
RETRY_SECONDS: Final = 2.0

logger = logging.getLogger(__name__)


class Elector:
    """Holds the Lease, or waits for it.

    Only the own monotonic clock decides: this process may write until the renew deadline
    after the start of its last successful renewal, and takes the Lease over when it did not
    change for its whole duration. `on_served` is called whenever the API server served the Lease.
    """

    def __init__(
        self,
        namespace: str,
        name: str,
        identity: str,
        *,
        clock: Callable[[], float],
        now: Callable[[], datetime],
        on_served: Callable[[], None],
    ) -> None:
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._clock = clock
        self._now = now
        self._on_served = on_served
        self._renewed_at: float | None = None
        self._lease: Document | None = None
        self._seen_version = ""
        self._seen_at = 0.0

    def may_write(self) -> bool:
        """Tell whether a write may start now."""
        return (
            self._renewed_at is not None
            and self._clock() < self._renewed_at + RENEW_DEADLINE_SECONDS
        )

    async def attempt(self, client: KubeClient) -> bool:
        """Renew or try to get the Lease; tell whether this process leads. Raises no KubeError."""
        started = self._clock()
        try:
            held = await self._renew(client) if self._lease is not None else False
            if not held:
                held = await self._acquire(client)
        except KubeError as error:
            logger.warning("lease %s/%s: %s", self._namespace, self._name, error)
            self._lease = None
        else:
            self._on_served()
            self._renewed_at = started if held else None
        return self.may_write()

    async def release(self, client: KubeClient) -> None:
        """Give the Lease back, so that another process need not wait. Raises no KubeError."""
        lease, self._lease, self._renewed_at = self._lease, None, None
        if lease is None:
            return
        try:
            await client.replace(LEASES, self._document(lease, holder="", duration=1))
        except KubeError as error:
            logger.info("lease %s/%s was not released: %s", self._namespace, self._name, error)

    async def run(self, client: KubeClient, on_change: Callable[[bool], None]) -> None:
        """Keep at it for ever; tell each change between leading and standing by."""
        led = False
        while True:
            leads = await self.attempt(client)
            if leads != led:
                led = leads
                on_change(leads)
            await asyncio.sleep(RETRY_SECONDS)

    async def _renew(self, client: KubeClient) -> bool:
        assert self._lease is not None
        try:
            self._lease = await client.replace(LEASES, self._document(self._lease))
        except (ConflictError, NotFoundError):
            self._lease = None
            return False
        return True

    async def _acquire(self, client: KubeClient) -> bool:
        try:
            lease = await client.read(LEASES, self._namespace, self._name)
        except NotFoundError:
            return await self._create(client)
        spec = lease.get("spec", {})
        version = lease["metadata"]["resourceVersion"]
        if version != self._seen_version:
            self._seen_version, self._seen_at = version, self._clock()
        holder = spec.get("holderIdentity") or ""
        waited = self._clock() - self._seen_at
        if holder not in ("", self._identity) and waited < spec.get(
            "leaseDurationSeconds", DURATION_SECONDS
        ):
            return False
        try:
            self._lease = await client.replace(LEASES, self._document(lease))
        except (ConflictError, NotFoundError):
            return False
        return True

    async def _create(self, client: KubeClient) -> bool:
        empty: Document = {"metadata": {"namespace": self._namespace, "name": self._name}}
        try:
            self._lease = await client.create(LEASES, self._document(empty), fenced=False)
        except AlreadyExistsError:
            return False
        return True

    def _document(
        self, lease: Document, *, holder: str | None = None, duration: int = DURATION_SECONDS
    ) -> Document:
        """Write the Lease as it is to be; a new holder is a transition."""
        name = self._identity if holder is None else holder
        before: dict[str, Any] = lease.get("spec", {})
        stamp = precise_timestamp(self._now())
        transition = name not in ("", before.get("holderIdentity"))
        spec = {
            **before,
            "holderIdentity": name,
            "leaseDurationSeconds": duration,
            "renewTime": stamp,
            "leaseTransitions": before.get("leaseTransitions", 0) + transition,
        }
        if transition or "acquireTime" not in spec:
            spec["acquireTime"] = stamp
        return {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": lease["metadata"],
            "spec": spec,
        }
