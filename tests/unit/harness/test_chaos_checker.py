"""The judge of chaos runs: it sees each thing that must not be, and nothing else."""

from random import Random

import pytest

from chaos.checker import Histories, judge
from chaos.faults import KINDS, schedule
from chaos.journal import Added, Computed, Dropped, Ended, Event, Sent
from chaos.plans import PLANS, plan

SENT = Sent("c.1", [7, 8, 9], 4, "read", retry=False)
PATIENT = Sent("c.1", [7, 8, 9], 4, "read", retry=True)
LEAVING = Sent("c.1", [7, 8, 9], 4, "leave", retry=False)
HURRIED = Sent("c.1", [7, 8, 9], 4, "deadline", retry=False)
FINISHED = Ended("c.1", [7, 8, 9, 7], "finished", "LENGTH")
ABORTED = Ended("c.1", [7, 8], "finished", "ABORT")
NAME = "c.1-0a1b2c3d"
SERVED: list[Event] = [Added(NAME), Computed(NAME, 4)]
BEGUN: list[Event] = [Added(NAME)]
DROPPED: list[Event] = [Added(NAME), Dropped(NAME)]


def failed(error: str, *tokens: int) -> Ended:
    return Ended("c.1", [*tokens], "failed", error)


def violations(
    client: list[Event],
    *engines: list[Event],
    killed: frozenset[str] = frozenset(),
    orderly: bool = False,
    stuck: bool = False,
) -> list[str]:
    named = {f"engine-{number}": events for number, events in enumerate(engines)}
    every, none = frozenset(named), frozenset[str]()
    histories = Histories(
        {"c": client}, named, killed, every if orderly else none, every if stuck else none
    )
    return judge(histories).violations


@pytest.mark.parametrize(
    ("client", "engines"),
    [
        ([SENT, FINISHED], [SERVED]),
        ([SENT, failed("EngineDeadError", 7, 8)], [BEGUN]),
        ([SENT, failed("LostOutputsError")], [SERVED]),
        ([SENT, failed("EngineNotReadyError")], []),
        ([PATIENT, FINISHED], [BEGUN, SERVED]),
        ([PATIENT, FINISHED], [SERVED, SERVED]),
        ([LEAVING, Ended("c.1", [7], "left")], [DROPPED]),
        ([LEAVING, FINISHED], [SERVED]),
        ([HURRIED, failed("RequestTimeoutError", 7)], [BEGUN]),
    ],
    ids=["finished", "engine died", "outputs lost", "no engine", "sent again",
         "sent again after its outputs were lost", "left", "left too late", "deadline"],
)  # fmt: skip
def test_what_may_happen_is_no_violation(client: list[Event], engines: list[list[Event]]) -> None:
    assert violations(client, *engines) == []


@pytest.mark.parametrize(
    ("client", "engines", "said"),
    [
        ([SENT], [BEGUN], "never ended"),
        ([SENT, SENT, FINISHED], [SERVED], "sent twice"),
        ([SENT, FINISHED, FINISHED], [SERVED], "ended twice"),
        ([FINISHED, SENT], [SERVED], "before it was sent"),
        ([SENT, Ended("c.1", [7, 9, 7, 8], "finished", "LENGTH")], [SERVED], "lost, doubled"),
        ([SENT, Ended("c.1", [7, 7, 8, 9], "finished", "LENGTH")], [SERVED], "lost, doubled"),
        ([SENT, Ended("c.1", [7, 8], "finished", "LENGTH")], [SERVED], "2 of 4 tokens"),
        ([SENT, ABORTED], [SERVED], "no engine that had it left"),
        ([SENT, ABORTED], [DROPPED], "no engine that had it left"),
        ([SENT, Ended("c.1", [8], "finished", "ABORT")], [SERVED], "lost, doubled"),
        ([SENT, failed("EngineDeadError", 7, 8, 9, 7, 8)], [BEGUN], "5 of 4 tokens"),
        ([SENT, failed("EngineDeadError", 8)], [BEGUN], "lost, doubled"),
        ([SENT, failed("ClientClosedError")], [BEGUN], "failed with ClientClosedError"),
        ([SENT, failed("RequestTimeoutError", 7)], [BEGUN], "deadline that it did not have"),
        ([PATIENT, failed("EngineDeadError")], [BEGUN], "could have been sent again"),
        ([SENT, Ended("c.1", [7], "left")], [BEGUN], "who had not"),
        ([SENT, Ended("c.1", [7], "broke", "KeyError()")], [BEGUN], "broke with KeyError"),
        ([SENT, FINISHED], [SERVED, BEGUN], "to be sent once"),
        ([SENT, FINISHED], [BEGUN], "no engine computed it"),
        ([SENT, FINISHED], [[Added(NAME), Computed(NAME, 3)]], "computed 3 tokens"),
        ([SENT, FINISHED], [[Computed(NAME, 4)]], "computed 4 tokens"),
        ([], [SERVED], "nobody sent it"),
    ],
)
def test_what_must_not_happen_is_seen(
    client: list[Event], engines: list[list[Event]], said: str
) -> None:
    assert any(said in text for text in violations(client, *engines))


def test_what_an_engine_that_leaves_in_order_may_have_left_undone() -> None:
    assert violations([SENT, ABORTED], DROPPED, orderly=True) == []
    assert violations([SENT, FINISHED], SERVED, orderly=True) == []
    (said,) = violations([LEAVING, Ended("c.1", [7], "left")], BEGUN, orderly=True)
    assert "was left with it" in said
    assert violations([SENT, ABORTED], BEGUN, orderly=True, stuck=True) == []


def test_a_killed_client_need_not_know_how_its_requests_ended() -> None:
    assert violations([SENT], BEGUN, killed=frozenset("c")) == []


def test_a_schedule_has_every_kind_and_is_the_seeds() -> None:
    faults = schedule(Random(1), 60.0, 3)
    assert {fault.kind for fault in faults} == set(KINDS)
    assert faults == schedule(Random(1), 60.0, 3)
    assert faults != schedule(Random(2), 60.0, 3)


def test_plans_are_the_seeds_and_of_every_kind() -> None:
    first, second = (
        [plan(random, str(n), patient=False) for n in range(200)]
        for random in (Random(1), Random(1))
    )
    assert first == second
    assert {each.sent.plan for each in first} == set(PLANS)
    assert {each.sent.retry for each in first} == {True, False}


def test_a_patient_caller_reads_to_the_end_and_may_be_served_again() -> None:
    random = Random(1)
    plans = [plan(random, str(n), patient=True) for n in range(50)]
    assert {(each.sent.plan, each.sent.retry) for each in plans} == {("read", True)}
