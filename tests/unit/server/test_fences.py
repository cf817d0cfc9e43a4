"""When ids and slots are free again."""

import itertools
import time

from enginecore_server.fences import FenceBook


def book() -> FenceBook:
    numbers = itertools.count(100)
    return FenceBook(lambda: next(numbers))


def test_an_id_is_held_until_the_reply() -> None:
    fences = book()
    call = fences.raise_fence(1, ["a"], release=False)
    assert call == 100
    assert fences.holds("a")
    assert fences.expects(1, 100)
    assert fences.passed(1) == (False, None)
    assert not fences.holds("a")
    assert not fences.expects(1, 100)


def test_what_comes_meanwhile_waits_for_the_next_reply() -> None:
    fences = book()
    fences.raise_fence(1, ["a"], release=False)
    assert fences.raise_fence(1, ["b"], release=False) is None
    assert fences.raise_fence(1, ["c"], release=True) is None
    assert fences.passed(1) == (False, 101)
    assert not fences.holds("a")
    assert fences.holds("b")
    assert fences.holds("c")
    assert fences.passed(1) == (True, None)
    assert not fences.holds("c")


def test_slots_have_fences_of_their_own() -> None:
    fences = book()
    first = fences.raise_fence(1, ["a"], release=False)
    second = fences.raise_fence(2, ["b"], release=True)
    assert first != second
    assert not fences.expects(2, first or 0)
    assert fences.passed(2) == (True, None)
    assert fences.holds("a")


def test_many_aborts_while_the_engine_is_silent_cost_the_same_each() -> None:
    fences = book()
    started = time.process_time()
    for number in range(50_000):
        fences.raise_fence(1, [f"r{number}"], release=False)
    assert time.process_time() - started < 2.0
    assert fences.holds("r49999")


def test_a_slot_without_requests_is_fenced_too() -> None:
    fences = book()
    assert fences.raise_fence(1, [], release=True) == 100
    assert fences.passed(1) == (True, None)
