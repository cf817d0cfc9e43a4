"""Sees to it that the Secrets with keys are there, and tells passes what is in them."""

from collections.abc import Callable
from datetime import datetime
from typing import Final

from enginecore_curve.pair import KeyPair
from enginecore_operator.kube.cache import Cache
from enginecore_operator.kube.execute import Executor
from enginecore_operator.kube.resources import CONFIG_MAPS
from enginecore_operator.kube.secrets import SecretStore
from enginecore_operator.plan import names
from enginecore_operator.plan.key_rotation import rest_of_step
from enginecore_operator.plan.keys import KeyHolder, secret_names, taken_secrets
from enginecore_operator.plan.observed import KeysView, ObservedObject
from enginecore_operator.plan.secrets import plan_copies, plan_secrets

TAKEN_DELAY: Final = 15.0
"""Seconds after which a name that is another's is looked at again: nobody tells when it is free."""


class KeyKeeper:
    """Makes the keys of a holder before anything is made that needs them.

    Args:
        store: the Secrets.
        cache: has the ConfigMaps.
        executor: reads those that are not ours.
        new_pair: makes a pair that nobody else has.
        lag: seconds within which files in pods follow.
        now: the time of day in UTC.
    """

    def __init__(
        self,
        store: SecretStore,
        cache: Cache,
        executor: Executor,
        new_pair: Callable[[], KeyPair],
        *,
        lag: float,
        now: Callable[[], datetime],
    ) -> None:
        self._store = store
        self._cache = cache
        self._executor = executor
        self._new_pair = new_pair
        self._lag = lag
        self._now = now

    async def make(self, holder: KeyHolder) -> KeysView:
        """Make what is missing; return what is there. Raises KubeError."""
        namespace, now = holder.meta.namespace, self._now()
        allowed = await self._allowed(holder)
        secrets = await self._store.read(namespace, secret_names(holder, holder.state))
        plan = plan_secrets(holder, secrets, allowed, self._new_pair, lag=self._lag, now=now)
        if plan.actions:
            # What was seen last of the others may be older than what went: a copy that was
            # deleted along with its original must not bring it back.
            self._store.forget(namespace, secret_names(holder, holder.state))
            secrets = await self._store.read(namespace, secret_names(holder, holder.state))
            plan = plan_secrets(holder, secrets, allowed, self._new_pair, lag=self._lag, now=now)
        for action in plan.actions:
            await self._store.carry_out(action)
        if plan.actions:
            secrets = await self._store.read(namespace, secret_names(holder, plan.state))
        copies = plan_copies(holder, plan.state, secrets)
        for action in copies:
            await self._store.carry_out(action)
        if copies:
            secrets = await self._store.read(namespace, secret_names(holder, plan.state))
        rest = rest_of_step(plan.state, self._lag, now)
        foreign = allowed is not None and not allowed.metadata.is_controlled_by(holder.meta.uid)
        if foreign or taken_secrets(holder, plan.state, secrets):
            rest = min(rest or TAKEN_DELAY, TAKEN_DELAY)
        return KeysView(
            state=plan.state, secrets=secrets, allowed=allowed, rest=rest, news=plan.events
        )

    async def _allowed(self, holder: KeyHolder) -> ObservedObject | None:
        """Return the list of those who are let in. Watches do not follow one that is not ours."""
        place = CONFIG_MAPS.kind, holder.meta.namespace, names.allowed_keys_name(holder.meta.name)
        there = self._cache.get(*place)
        if there is not None and not there.metadata.is_controlled_by(holder.meta.uid):
            await self._executor.refresh(CONFIG_MAPS, *place[1:])
            there = self._cache.get(*place)
        return there if isinstance(there, ObservedObject) else None
