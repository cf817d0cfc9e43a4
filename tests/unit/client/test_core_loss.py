"""What ClientCore does about engines that are lost or move; time is the test's."""

from itertools import pairwise

import pytest

from enginecore_client import (
    EngineDeadError,
    EngineNotReadyError,
    FinishReason,
)
from enginecore_client._core.events import (
    CallEnded,
    EngineAway,
    EngineDown,
    EngineLost,
    EngineRemoved,
    EngineUp,
    Reported,
    RequestEnded,
    StatsUpdate,
)
from enginecore_wire.control import (
    Draining,
    Reject,
    Stats,
)
from enginecore_wire.outputs import ENGINE_CORE_DEAD, SchedulerStats
from support.core_steps import CLOSED, add, of
from support.memory_link import MemoryLink


class TestLoss:
    """What ends when an engine goes."""

    def test_death_ends_what_it_had_once(self) -> None:
        link = MemoryLink("a", "b")
        add(link, "s", rank=0)
        add(link, "q", sink=None, rank=0)
        add(link, "other", rank=1)
        call = link.core.calls.send(link.pod("a").link, "is_sleeping", [], None, None)
        link.run()
        events = link.raw(link.pod("a"), ENGINE_CORE_DEAD)
        ended = {event.record.request_id: event.error for event in of(RequestEnded, events)}
        assert set(ended) == {"s", "q"}
        assert all(isinstance(error, EngineDeadError) for error in ended.values())
        assert len({id(error) for error in ended.values()}) == 2
        (reported,) = of(Reported, events)
        assert (reported.error.engine, reported.error.request_ids) == (0, ("q",))
        (ended_call,) = of(CallEnded, events)
        assert ended_call.record is call
        assert [event.engine for event in of(EngineDown, events)] == [0]
        assert link.core.unfinished == 1

    def test_an_idle_engines_death_is_reported_too(self) -> None:
        link = MemoryLink("a")
        assert len(of(Reported, link.raw(link.pod("a"), ENGINE_CORE_DEAD))) == 1

    def test_the_end_of_a_drained_engine_is_no_death(self) -> None:
        link = MemoryLink("a")
        link.control(link.pod("a"), Draining())
        link.down(link.pod("a"))
        events = link.wait(1.0)
        assert of(Reported, events) == []
        assert of(EngineLost, events) == []
        assert len(of(EngineDown, events)) == 1

    def test_a_new_pair_is_opened_with_new_names(self) -> None:
        link = MemoryLink("a")
        old = link.pod("a")
        link.raw(old, ENGINE_CORE_DEAD)
        link.wait(0.2)
        new = link.pod("a")
        assert new.link != old.link
        assert new.hellos[0].nonce != old.hellos[0].nonce
        add(link)
        assert len(new.adds) == 1

    def test_a_pod_that_keeps_ending_is_tried_less_and_less_often(self) -> None:
        link = MemoryLink("a", ready=False)
        times = []
        for _ in range(60):
            link.wait(0.5)
            pod = link.pod("a")
            if pod.connected:
                times.append(link.now)
                link.raw(pod, ENGINE_CORE_DEAD)
        gaps = [b - a for a, b in pairwise(times)]
        assert gaps[-1] >= 2.0
        assert len(times) < 20

    def test_silence_and_oversleeping(self) -> None:
        link = MemoryLink("a")
        add(link)
        link.now += 60
        link.core.tick(link.now)
        assert of(RequestEnded, link.run()) == []
        (ended,) = of(RequestEnded, link.wait(4.5))
        assert isinstance(ended.error, EngineDeadError)

    def test_retry_moves_a_request_without_a_token(self) -> None:
        link = MemoryLink("a", "b")
        without = add(link, "without", rank=None, retry=True)
        holder = next(p for p in link.pods.values() if p.adds)
        other = next(p for p in link.pods.values() if p is not holder)
        first_id = without.internal_id
        link.raw(holder, ENGINE_CORE_DEAD)
        link.wait(0.2)
        assert [r.external_req_id for r in other.adds] == ["without"]
        assert without.internal_id != first_id

    def test_no_retry_after_a_token(self) -> None:
        link = MemoryLink("a", "b")
        add(link, "with", retry=True)
        holder = next(p for p in link.pods.values() if p.adds)
        link.token(holder, 0, 5)
        (ended,) = of(RequestEnded, link.raw(holder, ENGINE_CORE_DEAD))
        assert isinstance(ended.error, EngineDeadError)

    def test_retry_after_overload_backs_off(self) -> None:
        link = MemoryLink("a")
        record = add(link, retry=True)
        pod = link.pod("a")
        for attempt in range(1, 6):
            link.control(pod, Reject(code="overloaded", request_id=record.internal_id))
            assert len(pod.adds) == attempt
            link.wait(0.05 * 2 ** (attempt - 1) + 0.1, step=0.05)
            assert len(pod.adds) == attempt + 1


class TestMoves:
    """Addresses that change."""

    def test_a_removed_engine_goes_when_its_streams_have_ended(self) -> None:
        link = MemoryLink("a", "b")
        add(link, rank=1)
        pod = link.pod("b")
        assert of(EngineRemoved, link.move("a")) == []
        with pytest.raises(EngineNotReadyError, match="engine 1 has no address now"):
            add(link, "new", rank=1)
        events = link.token(pod, 0, 1, reason=FinishReason.STOP)
        assert of(EngineRemoved, events) == [EngineRemoved(1)]
        assert [(close.link, close.farewell) for close in link.closed] == [(pod.link, True)]

    def test_a_replaced_engine_keeps_its_rank(self) -> None:
        link = MemoryLink("a")
        add(link, "old")
        old = link.pod("a")
        link.ranks["b"] = 0
        events = link.move("b")
        assert [event.engine for event in of(EngineUp, events)] == [0]
        add(link, "new")
        assert len(link.pod("b").adds) == 1
        events = link.token(old, 0, 1, reason=FinishReason.STOP)
        assert of(EngineRemoved, events) == []
        assert [close.link for close in link.closed] == [old.link]

    def test_a_rank_is_away_while_only_its_old_engine_is_there(self) -> None:
        link = MemoryLink("a")
        add(link, "old")
        old = link.pod("a")
        link.ranks["b"], link.answers = 0, False
        events = link.move("b")
        assert of(EngineAway, events) == [EngineAway(0)]
        link.token(old, 0, 1, reason=FinishReason.STOP)
        (up,) = of(EngineUp, link.answer(link.pod("b")))
        assert up.engine == 0

    def test_the_death_of_a_replaced_engine_is_not_its_replacements(self) -> None:
        link = MemoryLink("a", "c")
        add(link, "old", rank=0)
        old = link.pod("a")
        link.ranks["b"] = 0
        link.move("b", "c")
        link.control(link.pod("b"), Stats(scheduler_stats=SchedulerStats(num_running_reqs=50)))
        events = link.raw(old, ENGINE_CORE_DEAD)
        (ended,) = of(RequestEnded, events)
        assert isinstance(ended.error, EngineDeadError)
        assert of(EngineDown, events) == []
        assert [event.engine for event in of(EngineLost, events)] == [0]
        for number in range(4):
            add(link, f"new-{number}")
        assert (len(link.pod("b").adds), len(link.pod("c").adds)) == (0, 4)

    def test_a_client_closed_while_an_engine_leaves_has_nothing_left(self) -> None:
        link = MemoryLink("a", "b")
        add(link, rank=1)
        link.move("a")
        link.core.close(CLOSED, link.now)
        link.run()
        assert link.wait(0.5) == []
        assert len(link.closed) == 2

    def test_the_same_addresses_change_nothing(self) -> None:
        link = MemoryLink("a", "b")
        before = set(link.pods)
        link.move("a", "b")
        link.move("", "b", "a")
        assert set(link.pods) == before
        assert link.closed == []

    def test_stats_of_a_retired_engine_are_not_shown(self) -> None:
        link = MemoryLink("a")
        add(link)
        link.move("b")
        stats = Stats(scheduler_stats=SchedulerStats(num_running_reqs=9))
        assert of(StatsUpdate, link.control(link.pods[1], stats)) == []
