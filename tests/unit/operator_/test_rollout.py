"""Which engines get a new spec."""

import pytest

from enginecore_operator.api.lifecycle import Rollout
from enginecore_operator.plan.rollout import EngineState, choose_updates


def engines(pattern: str) -> list[EngineState]:
    """Read one letter for each rank: R ready, S serves and has yet to see its spec, D down;
    capital outdated, small updated.
    """
    return [
        EngineState(rank, ready=letter in "Rr", serves=letter in "RrSs", updated=letter.islower())
        for rank, letter in enumerate(pattern)
    ]


@pytest.mark.parametrize(
    ("pattern", "absent", "max_unavailable", "chosen"),
    [
        ("SSS", 0, 1, []),
        ("RRS", 0, 2, [1]),
        ("DSR", 0, 1, [0]),
        ("RRRR", 0, 1, [3]),
        ("RRRd", 0, 1, []),
        ("RRRr", 0, 1, [2]),
        ("RRRR", 0, 2, [3, 2]),
        ("RRRd", 0, 2, [2]),
        ("rrrr", 0, 1, []),
        ("RRRR", 1, 1, []),
        ("RDRR", 0, 1, [1]),
        ("DDRR", 0, 1, [1, 0]),
        ("DRRd", 0, 2, [0]),
        ("RRRR", 0, 9, [3, 2, 1, 0]),
        ("", 0, 1, []),
    ],
)
def test_choice(pattern: str, absent: int, max_unavailable: int, chosen: list[int]) -> None:
    policy = Rollout(max_unavailable=max_unavailable)
    assert choose_updates(engines(pattern), absent, policy) == chosen


def test_paused() -> None:
    assert choose_updates(engines("RDRR"), 0, Rollout(paused=True)) == []
