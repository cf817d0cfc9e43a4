"""Requests to the API server: JSON in, JSON out, typed errors."""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol
from urllib.parse import urlencode

import aiohttp
import msgspec
from kubernetes.aio import client as aio
from kubernetes.aio import config as aio_config

from enginecore_operator.api.labels import FIELD_MANAGER
from enginecore_operator.kube.errors import (
    ExpiredError,
    KubeError,
    NotLeaderError,
    UnreachableError,
    error_from_response,
)
from enginecore_operator.kube.resources import Resource

READ_SECONDS: Final = 30.0
WRITE_SECONDS: Final = 4.0
"""A write ends before another process can hold the Lease: duration minus renew deadline."""
PAGE_SIZE: Final = 500

MERGE_PATCH: Final = "application/merge-patch+json"
APPLY_PATCH: Final = "application/apply-patch+yaml"

Document = dict[str, Any]


class RequestObserver(Protocol):
    """Told about every request, for metrics."""

    def observe_request(self, verb: str, kind: str, outcome: str, seconds: float) -> None:
        """Take note of one request; `outcome` is a status code or the name of an error."""


class _ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    continue_: str = msgspec.field(default="", name="continue")
    resource_version: str = ""


class _List(msgspec.Struct, frozen=True):
    items: list[Document] = []
    metadata: _ListMeta = _ListMeta()


class Listing(msgspec.Struct, frozen=True):
    """All objects of one kind, and the version of the collection they are of."""

    items: list[Document]
    resource_version: str


class KubeClient:
    """Talks to one API server.

    `may_write` is asked right before every write but those of the Lease itself.
    """

    def __init__(
        self,
        api: aio.ApiClient,
        *,
        observer: RequestObserver,
        may_write: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._observer = observer
        self._may_write = may_write
        self._clock = clock

    async def read(self, resource: Resource, namespace: str, name: str) -> Document:
        """Read one object. Raises NotFoundError and other KubeErrors."""
        return await self._request("GET", resource, resource.path(namespace, name))

    async def list_all(self, resource: Resource, namespace: str = "", fields: str = "") -> Listing:
        """Read all objects of ours, in one namespace or in all. Raises KubeError.

        `fields` is a field selector, such as type=Warning.
        """
        found: list[Document] = []
        query = {"limit": str(PAGE_SIZE)}
        if resource.selector:
            query["labelSelector"] = resource.selector
        if fields:
            query["fieldSelector"] = fields
        while True:
            try:
                body = await self._send("GET", resource, resource.path(namespace), query=query)
            except ExpiredError:
                found.clear()
                query.pop("continue", None)
                continue
            page = msgspec.json.decode(body, type=_List)
            found += page.items
            if not page.metadata.continue_:
                return Listing(found, page.metadata.resource_version)
            query["continue"] = page.metadata.continue_

    async def create(
        self, resource: Resource, manifest: Document, *, fenced: bool = True
    ) -> Document:
        """Create an object and return it. Raises AlreadyExistsError and other KubeErrors."""
        path = resource.path(manifest["metadata"]["namespace"])
        return await self._write(
            "POST", resource, path, manifest, query={"fieldManager": FIELD_MANAGER}, fenced=fenced
        )

    async def replace(self, resource: Resource, manifest: Document) -> Document:
        """Replace an object of the same resourceVersion (the Lease). Raises ConflictError."""
        meta = manifest["metadata"]
        path = resource.path(meta["namespace"], meta["name"])
        return await self._write("PUT", resource, path, manifest, fenced=False)

    async def apply(self, resource: Resource, manifest: Document) -> Document:
        """Server-side apply, taking over fields others set. Raises KubeError."""
        meta = manifest["metadata"]
        path = resource.path(meta["namespace"], meta["name"])
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        return await self._write("PATCH", resource, path, manifest, query=query, media=APPLY_PATCH)

    async def patch(
        self, resource: Resource, namespace: str, name: str, patch: Document, subresource: str = ""
    ) -> Document:
        """Merge a patch into an object or a subresource of it. Raises KubeError."""
        path = resource.path(namespace, name, subresource)
        query = {"fieldManager": FIELD_MANAGER}
        return await self._write("PATCH", resource, path, patch, query=query, media=MERGE_PATCH)

    async def delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        *,
        uid: str = "",
        grace_seconds: int | None = None,
    ) -> Document:
        """Delete an object, its children in the background. Raises NotFoundError, ConflictError."""
        options: Document = {"propagationPolicy": "Background"}
        if uid:
            options["preconditions"] = {"uid": uid}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        return await self._write("DELETE", resource, resource.path(namespace, name), options)

    async def close(self) -> None:
        """Close the connections."""
        await self._api.close()  # type: ignore[no-untyped-call]

    async def _write(
        self,
        method: str,
        resource: Resource,
        path: str,
        body: Document,
        *,
        query: Mapping[str, str] | None = None,
        media: str = "application/json",
        fenced: bool = True,
    ) -> Document:
        if fenced and not self._may_write():
            raise NotLeaderError(f"{method} {path} was held back: this process does not lead")
        answer = await self._send(
            method, resource, path, query=query, body=body, media=media, seconds=WRITE_SECONDS
        )
        document: Document = msgspec.json.decode(answer)
        return document

    async def _request(self, method: str, resource: Resource, path: str) -> Document:
        document: Document = msgspec.json.decode(await self._send(method, resource, path))
        return document

    async def _send(
        self,
        method: str,
        resource: Resource,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Document | None = None,
        media: str = "application/json",
        seconds: float = READ_SECONDS,
    ) -> bytes:
        started = self._clock()
        outcome = "cancelled"
        try:
            status, answer = await self._exchange(method, path, query, body, media, seconds)
            outcome = str(status)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            outcome = type(error).__name__
            why = (
                f"no answer within {seconds:g} s" if isinstance(error, TimeoutError) else str(error)
            )
            raise UnreachableError(f"{method} {path}: {why or outcome}") from error
        finally:
            self._observer.observe_request(method, resource.kind, outcome, self._clock() - started)
        if status >= 400:
            raise error_from_response(status, answer)
        return answer

    async def _exchange(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Document | None,
        media: str,
        seconds: float,
    ) -> tuple[int, bytes]:
        headers = {"Content-Type": media, "Accept": "application/json"}
        await self._api.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
        url = self._api.configuration.host + path + (f"?{urlencode(query)}" if query else "")
        async with asyncio.timeout(seconds):
            response = await self._api.rest_client.request(  # type: ignore[no-untyped-call]
                method, url, headers=headers, body=body
            )
            return response.status, await response.read()


async def load_api_client(kubeconfig: str, *, connections: int) -> aio.ApiClient:
    """Open a client from a kubeconfig file, or from the pod's service account if it is empty.

    Raises KubeError when neither can be read.
    """
    configuration = aio.Configuration()
    try:
        if kubeconfig:
            await aio_config.load_kube_config(  # type: ignore[no-untyped-call]
                config_file=kubeconfig, client_configuration=configuration
            )
        else:
            aio_config.load_incluster_config(  # type: ignore[no-untyped-call]
                client_configuration=configuration
            )
    except (aio_config.ConfigException, OSError) as error:
        raise KubeError(f"no way to the API server: {error}; set KUBECONFIG") from error
    configuration.connection_pool_maxsize = connections
    # The API server is reached directly, whatever proxy the environment names.
    configuration.client_session_kwargs = {"trust_env": False}
    return aio.ApiClient(configuration)
