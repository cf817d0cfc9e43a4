"""How keys of another generation come in, step by step: nobody who was let in is shut out.

First engines let the new keys in, then clients get theirs, then engines are replaced, to which
clients connect with the new keys; once the last old pod has drained, the old keys go. Files in
pods follow with some lag, so a step that is seen in files lasts for as long as that.
"""

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

import msgspec

from enginecore_operator.api.conditions import parse_timestamp, timestamp
from enginecore_operator.api.status import KeysStatus

_LOOK: Final = 5.0
"""Seconds between two times at which an unseen step begins anew."""


class KeyStep(StrEnum):
    """What is under way."""

    SETTLED = "Settled"
    LISTING = "Listing"
    PUBLISHING = "Publishing"
    REPLACING = "Replacing"
    RETIRING = "Retiring"


STEP_TEXTS: Final = {
    KeyStep.SETTLED: "only the keys of generation {next} are let in",
    KeyStep.LISTING: "the keys of generation {next} are let in beside those of {generation}",
    KeyStep.PUBLISHING: "clients get the keys of generation {next}",
    KeyStep.REPLACING: "engines get the keys of generation {next} one after another",
    KeyStep.RETIRING: "every engine has the keys of generation {next}; those of {generation} go",
}


class Seen(msgspec.Struct, frozen=True):
    """What of the next generation is there already.

    `listed`: its keys are let in. `published`: clients' Secrets hold them. `replaced`: no pod has
    another, be it one that drains. `taken`: the wanted generation's Secret is another's.
    """

    listed: bool
    published: bool
    replaced: bool
    taken: bool


def advance(
    state: KeysStatus | None, wanted: int, seen: Seen, lag: float, now: datetime
) -> KeysStatus:
    """Return the step that holds from now on, at most one further; files follow within `lag`.

    A generation that is wanted meanwhile comes after the one that is coming in, unless clients have
    nothing of that yet: then it is dropped. One whose name is another's does not begin.
    """
    if state is None:
        return KeysStatus(generation=wanted, since=timestamp(now))
    match state.step:
        case KeyStep.LISTING:
            if wanted != state.next:
                return KeysStatus(generation=state.generation, since=timestamp(now))
            if not seen.listed:
                return _again(state, now)
            done = _has_lasted(state, lag, now)
            return _begin(state, KeyStep.PUBLISHING, now) if done else state
        case KeyStep.PUBLISHING:
            if not seen.published:
                return _again(state, now)
            done = _has_lasted(state, lag, now)
            return _begin(state, KeyStep.REPLACING, now) if done else state
        case KeyStep.REPLACING:
            return _begin(state, KeyStep.RETIRING, now) if seen.replaced else state
        case KeyStep.RETIRING:
            if not _has_lasted(state, lag, now):
                return state
            return KeysStatus(generation=state.next, since=timestamp(now))
    if wanted == state.generation or seen.taken:
        return state
    return _begin(msgspec.structs.replace(state, next=wanted), KeyStep.LISTING, now)


def rest_of_step(state: KeysStatus, lag: float, now: datetime) -> float | None:
    """Return the seconds until a step is over by time; None where something else ends it."""
    if state.step in (KeyStep.SETTLED, KeyStep.REPLACING):
        return None
    end = parse_timestamp(state.since) + timedelta(seconds=lag)
    return max((end - now).total_seconds(), 0.1)


def listed_generations(state: KeysStatus) -> tuple[int, ...]:
    """Return the generations whose keys are let in."""
    if state.step == KeyStep.SETTLED:
        return (state.generation,)
    return (state.generation, state.next)


def published_generation(state: KeysStatus) -> int:
    """Return the generation that clients are to use."""
    late = (KeyStep.PUBLISHING, KeyStep.REPLACING, KeyStep.RETIRING)
    return state.next if state.step in late else state.generation


def engine_generation(state: KeysStatus) -> int:
    """Return the generation that engines and the coordinator are to have."""
    late = (KeyStep.REPLACING, KeyStep.RETIRING)
    return state.next if state.step in late else state.generation


def _again(state: KeysStatus, now: datetime) -> KeysStatus:
    """Let the time of a step begin anew, but not with every look."""
    return _begin(state, KeyStep(state.step), now) if _has_lasted(state, _LOOK, now) else state


def _begin(state: KeysStatus, step: KeyStep, now: datetime) -> KeysStatus:
    return msgspec.structs.replace(state, step=step.value, since=timestamp(now))


def _has_lasted(state: KeysStatus, seconds: float, now: datetime) -> bool:
    return now >= parse_timestamp(state.since) + timedelta(seconds=seconds)
