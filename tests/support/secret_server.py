"""Secrets of an API server in memory, for tests of what the operator reads and writes of them."""

import base64
from collections.abc import Awaitable, Callable
from typing import Any

from enginecore_curve.keys import new_key_pair
from enginecore_curve.pair import KeyPair
from enginecore_operator.kube.errors import AlreadyExistsError, KubeError, NotFoundError
from enginecore_operator.kube.resources import Resource
from support.operator_objects import NAMESPACE


def secret(name: str, uid: str = "u", **pairs: KeyPair) -> dict[str, Any]:
    """Return a Secret with these entries, which the EngineCluster of uid `uid` owns."""
    owner = {"kind": "EngineCluster", "name": "smollm", "uid": uid, "controller": True}
    meta = {"name": name, "namespace": NAMESPACE, "uid": f"uid-{name}", "ownerReferences": [owner]}
    data = {entry: base64.b64encode(pair.secret.encode()).decode() for entry, pair in pairs.items()}
    return {"kind": "Secret", "metadata": meta, "data": data}


class SecretServer:
    """Answers like the client of an API server; a request takes `seconds`.

    `meanwhile` is done before a Secret of this name is read, once.
    """

    def __init__(self, *there: dict[str, Any], seconds: float = 0.0) -> None:
        self.objects = {raw["metadata"]["name"]: raw for raw in there}
        self.time = 100.0
        self.seconds = seconds
        self.meanwhile: dict[str, Callable[[], Awaitable[Any]]] = {}
        self.refusal: Callable[[dict[str, Any]], KubeError] | None = None
        self.written: list[str] = []

    def clock(self) -> float:
        """Return monotonic seconds."""
        return self.time

    async def read(self, _: Resource, __: str, name: str) -> dict[str, Any]:
        """Return what is there."""
        if name in self.meanwhile:
            await self.meanwhile.pop(name)()
        self.time += self.seconds
        if name not in self.objects:
            raise NotFoundError(404, "NotFound", name)
        return self.objects[name]

    async def create(self, _: Resource, manifest: dict[str, Any]) -> dict[str, Any]:
        """Make one, if there is none."""
        return self._write(manifest["metadata"]["name"], manifest, new=True)

    async def patch(self, _: Resource, __: str, name: str, body: dict[str, Any]) -> dict[str, Any]:
        """Merge the entries."""
        return self._write(name, body, new=False)

    def _write(self, name: str, body: dict[str, Any], *, new: bool) -> dict[str, Any]:
        if self.refusal is not None:
            raise self.refusal(body)
        there = self.objects.get(name)
        if there is None and not new:
            raise NotFoundError(404, "NotFound", name)
        if there is not None and new:
            raise AlreadyExistsError(409, "AlreadyExists", name)
        self.time += self.seconds
        self.written.append(name)
        meta = there["metadata"] if there else {**body["metadata"], "uid": f"uid-{name}"}
        data = {**(there["data"] if there else {}), **body["data"]}
        left = {entry: text for entry, text in data.items() if text is not None}
        self.objects[name] = {"kind": "Secret", "metadata": meta, "data": left}
        return self.objects[name]


def fresh_pairs(*parties: str) -> dict[str, KeyPair]:
    """Return a pair for each."""
    return {party: new_key_pair() for party in parties}
