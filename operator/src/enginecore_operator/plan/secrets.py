"""Decide which Secrets with keys are to be made, and when another generation's come in.

First the generations' own, then, by what is in them, the copies that clients have.
"""

import base64
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

import msgspec

from enginecore_curve.pair import KeyPair
from enginecore_operator.api.conditions import Reason
from enginecore_operator.api.status import KeysStatus
from enginecore_operator.plan import names
from enginecore_operator.plan.actions import Create, Event, ObjectRef, Patch
from enginecore_operator.plan.key_files import SERVER
from enginecore_operator.plan.key_rotation import (
    STEP_TEXTS,
    KeyStep,
    Seen,
    advance,
    listed_generations,
    published_generation,
)
from enginecore_operator.plan.keys import (
    PARTIES,
    PUBLIC_KEY,
    ROLES,
    SECRET_KEY,
    KeyHolder,
    holds,
    is_listed,
    is_published,
    marks,
    pairs_of,
)
from enginecore_operator.plan.observed import ObservedObject, ObservedSecret
from enginecore_operator.plan.rendering import owner_reference

Secrets = Mapping[str, ObservedSecret]


class SecretPlan(msgspec.Struct, frozen=True):
    """What to do about the Secrets of generations, and the step that holds then."""

    state: KeysStatus
    actions: tuple[Create | Patch, ...] = ()
    events: tuple[Event, ...] = ()


def plan_secrets(
    holder: KeyHolder,
    secrets: Secrets,
    allowed: ObservedObject | None,
    new_pair: Callable[[], KeyPair],
    *,
    lag: float,
    now: datetime,
) -> SecretPlan:
    """Decide the next pass.

    Args:
        holder: whose keys they are.
        secrets: those of `secret_names` that are there.
        allowed: the ConfigMap of those who are let in.
        new_pair: makes a pair that nobody else has.
        lag: seconds within which files in pods follow.
        now: time of this pass.
    """
    before = holder.state
    state = advance(before, holder.keys.generation, _see(holder, secrets, allowed), lag, now)
    actions: list[Create | Patch] = []
    events = list(_step_events(before, state))
    had = listed_generations(before) if before is not None else ()
    for number in listed_generations(state):
        # What clients have is by the step that held until now, whichever begins.
        copied = before is not None and number == published_generation(before)
        copies = _copies(holder, secrets, had, number) if copied else {}
        made = _complete(holder, secrets, number, new_pair, copies, known=number in had)
        actions += made.actions
        events += made.events
    return SecretPlan(state, tuple(actions), tuple(events))


def plan_copies(
    holder: KeyHolder, state: KeysStatus, secrets: Secrets
) -> tuple[Create | Patch, ...]:
    """Decide what clients get, and what goes, once the generations' Secrets are there.

    Args:
        holder: whose keys they are.
        state: the step that holds now.
        secrets: as they were read after the generations' had been written: nobody gets a key that
            is not in one of them.
    """
    actions: list[Create | Patch] = []
    pairs = pairs_of(holder, secrets, published_generation(state))
    for role in ROLES:
        if role in pairs:
            actions += _publish(holder, secrets, role, pairs[role])
    had = listed_generations(holder.state) if holder.state is not None else ()
    for number in had:
        if number not in listed_generations(state):
            actions += _empty(holder, secrets, number)
    return tuple(actions)


class _Made(msgspec.Struct, frozen=True):
    actions: tuple[Create | Patch, ...] = ()
    events: tuple[Event, ...] = ()


def _see(holder: KeyHolder, secrets: Secrets, allowed: ObservedObject | None) -> Seen:
    state = holder.state
    name = names.keys_secret_name(holder.meta.name, holder.keys.generation)
    wanted = secrets.get(name)
    taken = wanted is not None and not wanted.metadata.is_controlled_by(holder.meta.uid)
    if state is None or not state.next:
        return Seen(listed=False, published=False, replaced=False, taken=taken)
    pairs = pairs_of(holder, secrets, state.next)
    server = pairs.get(SERVER)
    return Seen(
        listed=is_listed(allowed, pairs),
        published=is_published(holder, secrets, pairs),
        replaced=server is not None and holder.in_use <= {server.public},
        taken=taken,
    )


def _complete(
    holder: KeyHolder,
    secrets: Secrets,
    generation: int,
    new_pair: Callable[[], KeyPair],
    copies: Mapping[str, KeyPair],
    *,
    known: bool,
) -> _Made:
    """See to it that a generation has all its keys; those it has stay.

    What it had before (`known`) and lost is taken from the copies that clients have, if they do.
    """
    name = names.keys_secret_name(holder.meta.name, generation)
    there = secrets.get(name)
    if there is not None and not there.metadata.is_controlled_by(holder.meta.uid):
        return _Made()
    pairs = pairs_of(holder, secrets, generation)
    missing = [party for party in PARTIES if party not in pairs]
    if not missing:
        return _Made()
    fresh = {party: copies.get(party) or new_pair() for party in missing}
    data = {party: pair.secret for party, pair in fresh.items()}
    event = Event(Reason.KEYS_MADE, f"Made the keys of generation {generation} in Secret {name}")
    if known:
        text = f"Secret {name} had lost keys of {', '.join(missing)}"
        new = [party for party in missing if party not in copies]
        text += f": made new ones of {', '.join(new)}" if new else ": they are back from copies"
        event = Event(Reason.KEYS_MADE, text, "Warning")
    return _Made((_write(holder, name, there, data),), (event,))


def _copies(
    holder: KeyHolder, secrets: Secrets, generations: Iterable[int], number: int
) -> dict[str, KeyPair]:
    """Return what clients' Secrets of ours hold, but for what is another generation's."""
    others = {
        pair.public
        for other in generations
        if other != number
        for pair in pairs_of(holder, secrets, other).values()
    }
    found = {}
    for role in ROLES:
        there = secrets.get(names.client_secret_name(holder.meta.name, role))
        if there is not None and there.metadata.is_controlled_by(holder.meta.uid):
            pair = there.pairs.get(SECRET_KEY)
            if pair is not None and holds(there, pair) and pair.public not in others:
                found[role] = pair
    return found


def _publish(
    holder: KeyHolder, secrets: Secrets, role: str, pair: KeyPair
) -> tuple[Create | Patch, ...]:
    name = names.client_secret_name(holder.meta.name, role)
    there = secrets.get(name)
    if there is not None and not there.metadata.is_controlled_by(holder.meta.uid):
        return ()
    if there is not None and holds(there, pair):
        return ()
    data = {SECRET_KEY: pair.secret, PUBLIC_KEY: pair.public}
    return (_write(holder, name, there, data),)


def _empty(holder: KeyHolder, secrets: Secrets, generation: int) -> tuple[Patch, ...]:
    """Take the secret keys of a generation that nobody has any more out of their Secret."""
    name = names.keys_secret_name(holder.meta.name, generation)
    there = secrets.get(name)
    if there is None or not pairs_of(holder, secrets, generation):
        return ()
    return (Patch(_reference(there), {"data": dict.fromkeys(PARTIES)}),)


def _write(
    holder: KeyHolder, name: str, there: ObservedSecret | None, data: Mapping[str, str]
) -> Create | Patch:
    encoded = {key: base64.b64encode(text.encode()).decode() for key, text in data.items()}
    if there is not None:
        return Patch(_reference(there), {"data": encoded})
    manifest: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": name,
            "namespace": holder.meta.namespace,
            "labels": marks(holder),
            "ownerReferences": [owner_reference(holder.kind, holder.meta)],
        },
        "type": "Opaque",
        "data": encoded,
    }
    return Create(manifest)


def _reference(secret: ObservedSecret) -> ObjectRef:
    meta = secret.metadata
    return ObjectRef("Secret", meta.namespace, meta.name, meta.uid)


def _step_events(before: KeysStatus | None, after: KeysStatus) -> tuple[Event, ...]:
    if before is None or before.step == after.step:
        return ()
    number = after.next or after.generation
    text = STEP_TEXTS[KeyStep(after.step)].format(next=number, generation=after.generation)
    return (Event(Reason.KEYS_CHANGING, f"{after.step}: {text}"),)
