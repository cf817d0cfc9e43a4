"""Carry out the actions of a Plan and keep the cache abreast of the answers."""

from typing import Any

from enginecore_operator.api import labels
from enginecore_operator.kube.cache import Cache
from enginecore_operator.kube.client import KubeClient
from enginecore_operator.kube.errors import (
    AlreadyExistsError,
    ConflictError,
    NotFoundError,
    RefusedError,
)
from enginecore_operator.kube.ownership import adopt_fields
from enginecore_operator.kube.resources import BY_KIND, CORES, PODS, Resource
from enginecore_operator.plan.actions import Action, Apply, Create, Delete, ObjectRef, Patch


class Executor:
    """Carries out actions."""

    def __init__(self, client: KubeClient, cache: Cache) -> None:
        self._client = client
        self._cache = cache

    async def execute(self, action: Action) -> None:
        """Carry out one action. Raises KubeError."""
        match action:
            case Create():
                await self._create(action.manifest)
            case Apply():
                await self._apply(action.manifest)
            case Delete():
                await self._delete(action)
            case Patch():
                await self._patch(action)

    async def refresh(self, resource: Resource, namespace: str, name: str) -> None:
        """Read an object the watches do not show, as it is not ours. Raises KubeError."""
        try:
            raw = await self._client.read(resource, namespace, name)
        except NotFoundError:
            self._cache.remove(resource.kind, namespace, name)
        else:
            self._cache.put(resource.kind, raw, found=True)

    async def _create(self, manifest: dict[str, Any]) -> None:
        resource, found = BY_KIND[manifest["kind"]], False
        try:
            raw = await self._client.create(resource, manifest)
        except AlreadyExistsError as error:
            # Ours, made before a restart or not yet in the cache, or somebody else's: the
            # next pass decides by what it sees.
            meta = manifest["metadata"]
            raw, found = await self._client.read(resource, meta["namespace"], meta["name"]), True
            if resource is PODS and labels.CORE not in raw["metadata"].get("labels", {}):
                text = f"pod {meta['name']} exists and is not the operator's; delete it"
                raise RefusedError(409, error.reason, text) from error
        self._cache.put(resource.kind, raw, found=found)

    async def _apply(self, manifest: dict[str, Any]) -> None:
        resource, meta = BY_KIND[manifest["kind"]], manifest["metadata"]
        namespace, name = meta["namespace"], meta["name"]
        try:
            raw = await self._client.read(resource, namespace, name)
        except NotFoundError:
            self._cache.remove(resource.kind, namespace, name)
            return
        there = raw["metadata"]
        # The spec of an EngineCore that we apply is its cluster's, and nobody else's.
        fields = adopt_fields(there.get("managedFields", []), whole_spec=resource is CORES)
        if fields is not None:
            version = there["resourceVersion"]
            patch = {"metadata": {"managedFields": fields, "resourceVersion": version}}
            await self._client.patch(resource, namespace, name, patch)
        self._cache.put(resource.kind, await self._client.apply(resource, manifest))

    async def _delete(self, action: Delete) -> None:
        ref = action.ref
        resource = BY_KIND[ref.kind]
        try:
            answer = await self._client.delete(
                resource, ref.namespace, ref.name, uid=ref.uid, grace_seconds=action.grace_seconds
            )
        except (NotFoundError, ConflictError):
            self._cache.remove(ref.kind, ref.namespace, ref.name, ref.uid)
            return
        if answer.get("kind") == resource.kind and action.grace_seconds != 0:
            self._cache.put(ref.kind, answer)
        else:
            self._cache.remove(ref.kind, ref.namespace, ref.name, ref.uid)

    async def _patch(self, action: Patch) -> None:
        ref: ObjectRef = action.ref
        resource = BY_KIND[ref.kind]
        body = {**action.patch, "metadata": {**action.patch.get("metadata", {}), "uid": ref.uid}}
        try:
            raw = await self._client.patch(resource, ref.namespace, ref.name, body)
        except (NotFoundError, ConflictError):
            self._cache.remove(ref.kind, ref.namespace, ref.name, ref.uid)
        else:
            self._cache.put(resource.kind, raw)
