"""How deep the engine sleeps, by calls and replies."""

from typing import Any

import pytest

from enginecore_server.heads import UtilityHead
from enginecore_server.sleep import SleepBook

AWAKE, OFFLOADED, DISCARDED = "awake", "weights_offloaded", "discard_all"


def after(*calls: tuple[str, list[Any], Any]) -> list[str]:
    """Return what holds after calls with arguments and values; a text as value is a failure."""
    book = SleepBook()
    for number, (method, args, value) in enumerate(calls):
        failure = value if isinstance(value, str) else None
        book.asked(1, number, method, args)
        book.answered(1, UtilityHead(number, failure, [None, value]))
    return [state for state, holds in book.states().items() if holds]


@pytest.mark.parametrize(
    ("calls", "states"),
    [
        ([], [AWAKE]),
        ([("sleep", [], None)], [OFFLOADED]),
        ([("sleep", [1, "wait"], None)], [OFFLOADED]),
        ([("sleep", [2], None)], [DISCARDED]),
        ([("sleep", [0], None)], []),
        ([("release_kv_cache_memory", [], None)], []),
        ([("sleep", [1], "no such mode")], [AWAKE]),
        ([("sleep", ["deep"], None)], [AWAKE]),
        ([("sleep", [1], None), ("wake_up", [], True)], [AWAKE]),
        ([("sleep", [1], None), ("wake_up", [], None)], [AWAKE]),
        ([("sleep", [1], None), ("wake_up", [["weights"]], False)], [OFFLOADED]),
        ([("sleep", [2], None), ("wake_up", [], "it failed")], [DISCARDED]),
        ([("pause_scheduler", [], None)], [AWAKE]),
    ],
)
def test_what_holds_after_calls(calls: list[Any], states: list[str]) -> None:
    assert after(*calls) == states


def test_a_call_counts_once_it_is_answered() -> None:
    book = SleepBook()
    book.asked(1, 7, "sleep", [1])
    book.answered(2, UtilityHead(7))
    book.answered(1, UtilityHead(8))
    assert book.states()[AWAKE]
    book.answered(1, UtilityHead(7))
    assert not book.states()[AWAKE]
