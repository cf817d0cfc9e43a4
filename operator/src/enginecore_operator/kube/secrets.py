"""Secrets with keys: read by name, kept for moments, and never shown."""

import asyncio
import base64
import binascii
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from enginecore_curve.keys import pair_of
from enginecore_curve.pair import KeyPair
from enginecore_operator.kube.client import KubeClient
from enginecore_operator.kube.errors import (
    AlreadyExistsError,
    ApiError,
    ConflictError,
    NotFoundError,
    OverloadedError,
)
from enginecore_operator.kube.resources import SECRETS
from enginecore_operator.plan.actions import Create, Patch
from enginecore_operator.plan.observed import ObjectMeta, ObservedSecret
from enginecore_wire.public_keys import is_key

FRESH_SECONDS: Final = 10.0
"""For so long an answer serves: passes over a cluster come in crowds."""
HIDDEN: Final = "its words are left out, as they repeat what is secret"
SHOWN_AT_MOST: Final = 5
"""Characters in a row that a text may have in common with a Secret's content, by chance."""

Place = tuple[str, str]


class SecretStore:
    """Reads and writes Secrets; keeps what it saw last of each.

    Args:
        client: a way to the API server.
        clock: monotonic seconds.
    """

    def __init__(self, client: KubeClient, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self._seen: dict[Place, tuple[float, ObservedSecret | None]] = {}

    async def read(self, namespace: str, names: Iterable[str]) -> dict[str, ObservedSecret]:
        """Return those that are there, by name. Raises KubeError."""
        self._forget_old()
        places = [(namespace, name) for name in names]
        # Taken now: another pass may forget them while this one waits for the others.
        found = {place: self._seen[place][1] for place in places if place in self._seen}
        unseen = [place for place in places if place not in found]
        answers = await asyncio.gather(*map(self._read, unseen))
        found |= dict(zip(unseen, answers, strict=True))
        return {name: secret for (_, name), secret in found.items() if secret is not None}

    def forget(self, namespace: str, names: Iterable[str]) -> None:
        """See to it that these are read anew."""
        for name in names:
            self._seen.pop((namespace, name), None)

    async def carry_out(self, action: Create | Patch) -> None:
        """Make or change one. Raises KubeError, whose text has nothing of the content."""
        try:
            if isinstance(action, Create):
                await self._create(action.manifest)
            else:
                await self._patch(action)
        except (ApiError, OverloadedError) as error:
            body = action.manifest if isinstance(action, Create) else action.patch
            if not shows(str(error), body.get("data", {})):
                raise
            raise type(error)(error.status, error.reason, HIDDEN) from None

    def _forget_old(self) -> None:
        oldest = self._clock() - FRESH_SECONDS
        self._seen = {place: seen for place, seen in self._seen.items() if seen[0] > oldest}

    async def _read(self, place: Place) -> ObservedSecret | None:
        try:
            return self._take(await self._client.read(SECRETS, *place))
        except NotFoundError:
            self._seen[place] = self._clock(), None
            return None

    async def _create(self, manifest: dict[str, Any]) -> None:
        try:
            self._take(await self._client.create(SECRETS, manifest))
        except AlreadyExistsError:
            await self._read((manifest["metadata"]["namespace"], manifest["metadata"]["name"]))

    async def _patch(self, action: Patch) -> None:
        ref = action.ref
        body = {**action.patch, "metadata": {"uid": ref.uid}}
        try:
            self._take(await self._client.patch(SECRETS, ref.namespace, ref.name, body))
        except (NotFoundError, ConflictError):
            await self._read((ref.namespace, ref.name))

    def _take(self, raw: dict[str, Any]) -> ObservedSecret:
        secret = read_secret(raw)
        meta = secret.metadata
        self._seen[meta.namespace, meta.name] = self._clock(), secret
        return secret


def read_secret(raw: Mapping[str, Any]) -> ObservedSecret:
    """Reduce a Secret to its keys."""
    found = {name: _pair(text) for name, text in (raw.get("data") or {}).items()}
    return ObservedSecret(
        msgspec.convert(raw["metadata"], ObjectMeta),
        {name: pair for name, pair in found.items() if pair is not None},
    )


def shows(text: str, data: Mapping[str, Any]) -> bool:
    """Tell whether a text has a piece of a Secret's content, as it is sent or as it is mounted.

    A piece is enough: servers cut long texts, and write some characters in other ways.
    """
    given = [encoded for encoded in data.values() if encoded]
    contents = [*given, *(base64.b64decode(encoded).decode() for encoded in given)]
    size = SHOWN_AT_MOST + 1
    return any(
        content[start : start + size] in text
        for content in contents
        for start in range(max(len(content) - size, 0) + 1)
    )


def _pair(encoded: str) -> KeyPair | None:
    try:
        text = base64.b64decode(encoded).decode("ascii").strip()
    except (binascii.Error, ValueError):
        return None
    return pair_of(text) if is_key(text) else None
