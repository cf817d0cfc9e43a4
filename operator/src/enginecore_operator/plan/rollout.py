"""Choose which engines get a new spec now."""

from collections.abc import Sequence
from typing import NamedTuple

from enginecore_operator.api.lifecycle import Rollout


class EngineState(NamedTuple):
    """What a rollout asks about one engine. `ready`: with the spec it has at present; `serves`:
    with that one, or with the one before.
    """

    rank: int
    ready: bool
    serves: bool
    updated: bool


def choose_updates(engines: Sequence[EngineState], absent: int, policy: Rollout) -> list[int]:
    """Choose the ranks to update now, highest first.

    Engines that do not serve lose nothing and are updated at once: a rollout to a broken
    spec is mended by the next one. Of the Ready ones only as many as keep the number of
    engines that are not Ready, `absent` ranks included, within maxUnavailable.
    """
    if policy.paused:
        return []
    by_rank = sorted(engines, key=lambda engine: engine.rank, reverse=True)
    outdated = [engine for engine in by_rank if not engine.updated]
    down = absent + sum(not engine.ready for engine in by_rank)
    budget = max(policy.max_unavailable - down, 0)
    broken = [engine.rank for engine in outdated if not engine.serves]
    serving = [engine.rank for engine in outdated if engine.ready]
    return broken + serving[:budget]
