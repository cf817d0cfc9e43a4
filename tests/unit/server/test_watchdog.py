"""Deadlines of steps and of the start."""

import pytest

from enginecore_server.watchdog import StartWatch, StepWatch, Verdict

FINE, PROBE, DEAD = Verdict.FINE, Verdict.PROBE, Verdict.DEAD
DEADLINE = 10.0


def run(events: list[tuple[float, str]]) -> list[Verdict]:
    """Play events: `work`/`idle` are checks, the others come from the engine. Between them
    the watch is checked each second, as the server does, with the last state of work."""
    watch = StepWatch(DEADLINE, 0.0)
    verdicts = []
    now, work = 0.0, False
    for at, event in events:
        while now + 1 < at:
            now += 1
            verdicts.append(watch.check(work, now))
        now = at
        if event == "output":
            watch.heard(now)
        elif event in ("paused", "running"):
            watch.answered(event == "paused", now)
        else:
            work = event == "work"
            verdicts.append(watch.check(work, now))
    return [verdict for verdict in verdicts if verdict is not FINE]


@pytest.mark.parametrize(
    ("events", "verdicts"),
    [
        ([(1, "work"), (5, "work")], []),
        ([(1, "work"), (6, "work")], [PROBE]),
        ([(1, "work"), (11, "work")], [PROBE, DEAD]),
        ([(1, "work"), (5, "output"), (9, "output"), (13, "work")], []),
        ([(1, "work"), (7, "running"), (11, "work")], [PROBE, DEAD]),
        ([(1, "work"), (7, "paused"), (11, "work")], [PROBE]),
        ([(1, "work"), (7, "paused"), (16.5, "work")], [PROBE, PROBE]),
        ([(1, "work"), (7, "paused"), (17, "work")], [PROBE, PROBE, DEAD]),
        ([(5, "idle")], [PROBE]),
        ([(5, "idle"), (6, "running"), (9, "idle")], [PROBE]),
        ([(15, "idle")], [PROBE, DEAD]),
        ([(5, "idle"), (6, "running"), (8, "work"), (12, "work")], [PROBE]),
        ([(5, "idle"), (8, "work"), (15, "work")], [PROBE, DEAD]),
    ],
    ids=[
        "young", "asked halfway", "silent", "steady", "answers but computes nothing",
        "paused on purpose", "paused, asked again", "paused, then silent", "idle is asked",
        "idle answers", "idle and silent", "work starts the clock", "work on a silent engine",
    ],
)  # fmt: skip
def test_an_engine_is_judged_by_what_is_heard(
    events: list[tuple[float, str]], verdicts: list[Verdict]
) -> None:
    assert run(events) == verdicts


def test_work_after_a_long_idle_time_has_the_whole_deadline() -> None:
    watch = StepWatch(DEADLINE, 0.0)
    verdicts = []
    for now in range(1, 40):
        watch.heard(0.5)  # the server tells the last output at every check
        verdicts.append(watch.check(now >= 30, now))
        if verdicts[-1] is PROBE and now < 30:
            watch.answered(paused=False, now=now + 0.1)
    assert DEAD not in verdicts


def test_a_server_that_was_stopped_itself_holds_nothing_against_the_engine() -> None:
    watch = StepWatch(DEADLINE, 0.0)
    assert watch.check(True, 1.0) is FINE
    assert watch.check(True, 500.0) is FINE
    assert watch.check(True, 504.0) is FINE


@pytest.mark.parametrize(
    ("steps", "stuck"),
    [
        ([("check", 9.9, 0.0)], False),
        ([("check", 10.0, 0.0)], True),
        ([("progress", 5.0, 0.0), ("check", 14.0, 0.0)], False),
        ([("progress", 5.0, 0.0), ("check", 15.0, 0.0)], True),
        ([("check", 8.0, 0.6), ("check", 17.0, 0.9)], False),
        ([("check", 8.0, 0.6), ("check", 18.0, 0.9)], True),
        ([("check", 8.0, 0.1), ("check", 10.0, 0.4)], True),
        ([("check", 8.0, 5.0), ("check", 16.0, 1.0), ("check", 24.0, 1.0)], False),
    ],
)
def test_a_start_needs_progress(steps: list[tuple[str, float, float]], stuck: bool) -> None:
    watch = StartWatch(DEADLINE, 0.0)
    verdict = False
    for kind, now, cpu in steps:
        if kind == "progress":
            watch.progress(now)
        else:
            verdict = watch.stuck(cpu, now)
    assert verdict is stuck
