"""Secrets with keys as passes of the operator make them, for tests of its decisions."""

import base64
from collections.abc import Iterable
from datetime import datetime
from itertools import count
from typing import Any

import msgspec

from enginecore_curve.pair import KeyPair
from enginecore_operator.plan.actions import Create, Patch
from enginecore_operator.plan.key_rotation import rest_of_step
from enginecore_operator.plan.keys import KeyHolder, secret_names
from enginecore_operator.plan.observed import KeysView, ObjectMeta, ObservedObject, ObservedSecret
from enginecore_operator.plan.secrets import plan_copies, plan_secrets

LAG = 100.0
SECURED = {"transport": {"security": "Curve"}}


def numbered(number: int) -> KeyPair:
    """Return the pair that was made as the so manieth."""
    return KeyPair(f"{number:040d}", f"{-number:040d}")


class KeyChest:
    """The Secrets of a namespace; new pairs are numbered from 1.

    While there is a `refusal`, the API server says this instead of anything about Secrets.
    """

    def __init__(self) -> None:
        self.refusal = ""
        self.secrets: dict[str, ObservedSecret] = {}
        self._numbers = count(1)

    def make(self, holder: KeyHolder, allowed: ObservedObject | None, now: datetime) -> KeysView:
        """Make one pass over the Secrets and take over what it does."""
        plan = plan_secrets(
            holder,
            self._known(holder),
            allowed,
            lambda: numbered(next(self._numbers)),
            lag=LAG,
            now=now,
        )
        self._take(plan.actions)
        self._take(plan_copies(holder, plan.state, self._known(holder)))
        return KeysView(
            state=plan.state,
            secrets=dict(self.secrets),
            allowed=allowed,
            rest=rest_of_step(plan.state, LAG, now),
            news=plan.events,
        )

    def public(self, name: str) -> dict[str, str]:
        """Return the public key of each entry of a Secret."""
        return {entry: pair.public for entry, pair in self.secrets[name].pairs.items()}

    def put_foreign(self, name: str) -> None:
        """Put another's Secret there."""
        meta = ObjectMeta(name=name, namespace="lab", uid=f"uid-{name}")
        self.secrets[name] = ObservedSecret(meta, {"server": numbered(99)})

    def lose(self, name: str, *entries: str) -> None:
        """Let somebody take entries out of a Secret."""
        there = self.secrets[name]
        left = {entry: pair for entry, pair in there.pairs.items() if entry not in entries}
        self.secrets[name] = msgspec.structs.replace(there, pairs=left)

    def _known(self, holder: KeyHolder) -> dict[str, ObservedSecret]:
        wanted = secret_names(holder, holder.state)
        return {name: found for name, found in self.secrets.items() if name in wanted}

    def _take(self, actions: Iterable[Create | Patch]) -> None:
        for action in actions:
            if isinstance(action, Create):
                meta = msgspec.convert(action.manifest["metadata"], ObjectMeta)
                assert meta.name not in self.secrets
                self.secrets[meta.name] = ObservedSecret(meta, _pairs(action.manifest["data"]))
            else:
                there = self.secrets[action.ref.name]
                data = action.patch["data"]
                left = {k: v for k, v in there.pairs.items() if data.get(k, v) is not None}
                pairs = {**left, **_pairs({k: v for k, v in data.items() if v is not None})}
                self.secrets[action.ref.name] = msgspec.structs.replace(there, pairs=pairs)


def _pairs(data: dict[str, Any]) -> dict[str, KeyPair]:
    texts = {name: base64.b64decode(text).decode() for name, text in data.items()}
    return {name: numbered(-int(text)) for name, text in texts.items()}
