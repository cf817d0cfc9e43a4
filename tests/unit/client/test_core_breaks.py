"""What ClientCore does about connections that break and come back; time is the test's."""

from collections.abc import Callable

import pytest

from enginecore_client import (
    AuthenticationError,
    FinishReason,
    LostOutputsError,
)
from enginecore_client._core.events import (
    CallEnded,
    Delivered,
    RequestEnded,
)
from enginecore_client._core.states import Channel
from enginecore_wire.control import (
    PhaseChange,
    Pong,
)
from support.core_steps import add, of
from support.memory_link import MemoryLink


class TestBreaks:
    """What is found to be lost, and what goes on."""

    def test_a_short_break_keeps_streams(self) -> None:
        link = MemoryLink("a")
        record = add(link)
        pod = link.pod("a")
        link.token(pod, 0, 5)
        link.down(pod)
        link.wait(0.3)
        link.up(pod)
        events = link.answer(pod, requests=[record.internal_id])
        assert of(RequestEnded, events) == []
        assert len(of(Delivered, link.token(pod, 0, 6))) == 1

    def test_outputs_lost_in_a_break_end_the_streams(self) -> None:
        link = MemoryLink("a")
        record = add(link)
        pod = link.pod("a")
        link.token(pod, 0, 5)
        link.down(pod)
        pod.outputs_sent += 2
        link.up(pod)
        (ended,) = of(RequestEnded, link.answer(pod, requests=[record.internal_id]))
        assert isinstance(ended.error, LostOutputsError)
        assert "2 messages" in str(ended.error)
        assert pod.aborts == [record.internal_id]

    def test_what_comes_before_ready_waits_for_it(self) -> None:
        link = MemoryLink("a")
        record = add(link)
        pod = link.pod("a")
        link.token(pod, 0, 5)
        link.down(pod)
        link.up(pod)
        assert of(Delivered, link.token(pod, 0, 6)) == []
        events = link.answer(pod, requests=[record.internal_id])
        (delivered,) = of(Delivered, events)
        assert [output.new_token_ids for output in delivered.outputs] == [[6]]
        assert of(RequestEnded, events) == []

    def test_an_end_that_comes_before_ready_is_not_lost(self) -> None:
        link = MemoryLink("a")
        add(link)
        pod = link.pod("a")
        link.token(pod, 0, 5)
        link.down(pod)
        link.up(pod)
        link.token(pod, 0, 6, reason=FinishReason.LENGTH)
        events = link.answer(pod, requests=[])
        (delivered,) = of(Delivered, events)
        assert delivered.outputs[0].finish_reason is FinishReason.LENGTH
        assert [event.error for event in of(RequestEnded, events)] in ([], [None])
        assert link.core.unfinished == 0

    @pytest.mark.parametrize("told_by", ["ready", "pong"])
    def test_what_comes_behind_a_hole_is_not_delivered(self, told_by: str) -> None:
        link = MemoryLink("a")
        record = add(link)
        pod = link.pod("a")
        link.token(pod, 0, 5)
        link.down(pod)
        pod.outputs_sent += 1
        link.up(pod)
        events = link.token(pod, 0, 7)
        if told_by == "pong":
            events += link.control(pod, Pong(outputs_sent=pod.outputs_sent))
        events += link.answer(pod, requests=[record.internal_id])
        assert of(Delivered, events) == []
        (ended,) = of(RequestEnded, events)
        assert isinstance(ended.error, LostOutputsError)

    def test_a_lost_add_is_found(self) -> None:
        link = MemoryLink("a")
        lost = add(link, "lost")
        kept = add(link, "kept")
        pod = link.pod("a")
        link.down(pod)
        link.up(pod)
        (ended,) = of(RequestEnded, link.answer(pod, requests=[kept.internal_id, "stranger"]))
        assert ended.record is lost
        assert isinstance(ended.error, LostOutputsError)
        assert set(pod.aborts) == {lost.internal_id, "stranger"}

    def test_a_request_added_during_a_break_is_not_taken_for_lost(self) -> None:
        link = MemoryLink("a")
        pod = link.pod("a")
        link.control(pod, PhaseChange("Ready"))
        connection = link.core._fleet.connections[pod.link]
        pod.connected = False
        record = add(link)
        assert not record.sent
        link.down(pod)
        link.up(pod)
        events = link.answer(pod, requests=[])
        assert of(RequestEnded, events) == []
        assert [r.request_id for r in pod.adds] == [record.internal_id]
        assert connection.requests == {record.internal_id: record}

    def test_calls_lost_in_a_break_say_so(self) -> None:
        link = MemoryLink("a")
        pod = link.pod("a")
        link.core.calls.send(pod.link, "sleep", [1], None, None)
        link.run()
        link.down(pod)
        pod.outputs_sent += 1
        link.up(pod)
        (ended,) = of(CallEnded, link.answer(pod))
        assert isinstance(ended.error, LostOutputsError)
        assert "may or may not have been executed" in str(ended.error)

    @pytest.mark.parametrize(
        ("held", "ended"),
        [(lambda call: [call], False), (lambda _: [], True), (lambda _: None, True)],
        ids=["the pod has it", "the pod has none", "the pod does not say"],
    )
    def test_a_call_lost_on_the_way_in_says_so_though_no_output_is_missing(
        self, held: Callable[[int], list[int] | None], ended: bool
    ) -> None:
        link = MemoryLink("a")
        pod = link.pod("a")
        call = link.core.calls.send(pod.link, "sleep", [1], None, None)
        link.run()
        link.down(pod)
        link.up(pod)
        events = of(CallEnded, link.answer(pod, calls=held(call.call_id)))
        assert [type(event.error) for event in events] == [LostOutputsError] * ended

    def test_what_came_before_hello_does_not_count(self) -> None:
        link = MemoryLink("a")
        record = add(link)
        pod = link.pod("a")
        link.token(pod, 0, 5)
        link.down(pod)
        pod.outputs_sent += 1  # 6 is lost
        assert of(Delivered, link.token(pod, 0, 7)) == []
        link.up(pod)
        assert pod.hellos[-1].received == 1
        pod.outputs_sent -= 2  # the pod sends again what it has sent
        link.token(pod, 0, 6)
        link.token(pod, 0, 7)
        events = link.answer(pod, requests=[record.internal_id])
        tokens = [o.new_token_ids for event in of(Delivered, events) for o in event.outputs]
        assert tokens == [[6], [7]]
        assert of(RequestEnded, events) == []

    def test_nothing_is_sent_again_where_nobody_knows_what_came_when(self) -> None:
        link = MemoryLink("a")
        record = add(link)
        pod = link.pod("a")
        link.token(pod, 0, 5)
        link.down(pod)
        pod.connected = True
        for channel in Channel:
            link.core.links.connected(pod.link, channel, link.now, at_once=True)
        link.run()
        assert pod.hellos[-1].received == -1
        assert of(RequestEnded, link.answer(pod, requests=[record.internal_id])) == []

    def test_two_handshakes_cut_short_with_nobody_there_between_say_nothing_of_keys(self) -> None:
        link = MemoryLink("a", ready=False)
        pod = link.pod("a")
        link.core.links.refused(pod.link, None, link.now)
        link.core.links.listened(pod.link, listens=False)
        link.now += 30
        link.core.links.refused(pod.link, None, link.now)
        assert link.core.refusal() is None
        link.now += 30
        link.core.links.refused(pod.link, None, link.now)
        assert isinstance(link.core.refusal(), AuthenticationError)

    def test_another_engine_at_the_address_is_not_taken_for_the_one_before(self) -> None:
        link = MemoryLink("a")
        record = add(link)
        pod = link.pod("a")
        link.down(pod)
        link.up(pod)
        events = link.answer(pod, requests=[record.internal_id], name="of another cluster")
        (ended,) = of(RequestEnded, events)
        assert "'of another cluster' answers where" in str(ended.error)

    def test_a_message_that_may_have_been_a_reply_ends_the_calls(self) -> None:
        link = MemoryLink("a")
        pod = link.pod("a")
        link.core.calls.send(pod.link, "is_sleeping", [], None, None)
        link.run()
        (ended,) = of(CallEnded, link.raw(pod, b"\xc1"))
        assert isinstance(ended.error, LostOutputsError)
        assert "is_sleeping: a message could not be read" in str(ended.error)
