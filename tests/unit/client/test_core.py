"""What ClientCore decides, with pods in memory and a clock that the test moves."""

import msgspec
import pytest

from enginecore_client import (
    ClientAddresses,
    ClientClosedError,
    EngineCoreRequest,
    EngineDeadError,
    EngineDrainingError,
    EngineNotReadyError,
    FinishReason,
    OverloadedError,
    RequestRejectedError,
    RequestTimeoutError,
    UtilityError,
)
from enginecore_client._core.events import (
    CallEnded,
    Delivered,
    EngineUp,
    LoadKnown,
    LoadsMissed,
    RankTaken,
    RequestEnded,
    StatsUpdate,
)
from enginecore_client._core.loads import STALE_SECONDS
from enginecore_wire.control import (
    Draining,
    Limits,
    Pong,
    Stats,
)
from enginecore_wire.coordination import LoadReport
from enginecore_wire.outputs import ENGINE_CORE_DEAD, EngineCoreOutput, SchedulerStats
from support.core_steps import CLOSED, SINK, add, of
from support.memory_link import MemoryLink


def test_ids_slot_and_arrival_are_filled_in() -> None:
    link = MemoryLink("a", ready=False)
    pod = link.pod("a")
    link.answer(pod, slot=5)
    add(link, "mine")
    (sent,) = pod.adds
    assert sent.request_id.startswith("mine-")
    assert len(sent.request_id) == len("mine-") + 8
    assert (sent.external_req_id, sent.client_index, sent.arrival_time) == ("mine", 5, 7e8)


def test_a_nameless_request_gets_a_name() -> None:
    link = MemoryLink("a")
    record = add(link, "")
    assert record.request_id
    assert link.pod("a").adds[0].external_req_id == record.request_id


def test_outputs_reach_their_record_under_the_callers_name() -> None:
    link = MemoryLink("a")
    record = add(link, "mine")
    pod = link.pod("a")
    link.now += 0.5
    (event,) = of(Delivered, link.token(pod, 0, 7))
    ((delivered,), (output,)) = event.records, event.outputs
    assert (delivered, output.request_id, output.new_token_ids) == (record, "mine", [7])
    assert (event.at, event.queued) == (link.now, None)
    link.token(pod, 0, 8, reason=FinishReason.LENGTH)
    assert link.core.unfinished == 0
    assert of(Delivered, link.token(pod, 0, 9)) == []


def test_queued_and_streamed_requests_are_told_apart_in_one_message() -> None:
    link = MemoryLink("a")
    add(link, "stream")
    add(link, "queue", sink=None)
    pod = link.pod("a")
    names = [request.request_id for request in pod.adds]
    outputs = [EngineCoreOutput(name, [i], finish_reason=1) for i, name in enumerate(names)]
    (event,) = of(Delivered, link.outputs(pod, outputs=outputs, finished_requests=names))
    assert len(event.outputs) == 2
    assert [output.request_id for output in event.queued.outputs] == ["queue"]
    assert event.queued.finished_requests == ["queue"]
    assert event.queued.engine_index == 0


def test_engine_index_is_the_ranks_not_the_engines_own() -> None:
    link = MemoryLink("a", "b")
    add(link, "x", sink=None, rank=1)
    pod = link.pod("b")
    outputs = [EngineCoreOutput(pod.adds[0].request_id, [1])]
    (event,) = of(Delivered, link.outputs(pod, engine_index=0, outputs=outputs))
    assert event.queued.engine_index == 1


def test_rank_is_readys_unless_another_engine_has_it() -> None:
    link = MemoryLink("a", "b", ready=False)
    (up,) = of(EngineUp, link.answer(link.pod("a"), rank=7))
    assert up.engine == 7
    events = link.answer(link.pod("b"), rank=7)
    (up,) = of(EngineUp, events)
    assert up.engine == 1
    assert of(RankTaken, events) == [RankTaken(1, 7, "ipc://b/in")]


def test_requests_spread_over_engines() -> None:
    link = MemoryLink("a", "b", "c")
    for number in range(9):
        add(link, str(number))
    assert [len(link.pod(name).adds) for name in "abc"] == [3, 3, 3]


def test_coordinator_loads_outweigh_stats() -> None:
    link = MemoryLink("a", "b")
    frame = msgspec.msgpack.encode([[[0, 50, 0.1], [0, 2, 0.1]], 0, False])
    link.core.loads.receive([frame], link.now)
    link.control(link.pod("a"), Stats(scheduler_stats=SchedulerStats(num_running_reqs=0)))
    link.control(link.pod("b"), Stats(scheduler_stats=SchedulerStats(num_running_reqs=99)))
    add(link, "one")
    assert len(link.pod("b").adds) == 1
    link.core.loads.receive([b"\xc1"], link.now)
    assert link.core.unreadable == 1


def test_a_silent_coordinator_is_connected_anew() -> None:
    link = MemoryLink("a")
    addresses = {"input_address": "ipc://a/in", "output_address": "ipc://a/out"}
    stats = ClientAddresses.from_dict({**addresses, "stats_update_address": "tcp://c:1"})
    link.core.set_addresses(stats, link.now)
    link.run()
    (missed,) = of(LoadsMissed, link.wait(30, step=1.0))
    assert missed == LoadsMissed("tcp://c:1", STALE_SECONDS)
    assert link.subscribed == ["tcp://c:1"] * 3
    link.loads(LoadReport(None))
    assert len(of(LoadsMissed, link.wait(30, step=1.0))) == 1
    link.move("a")
    assert link.subscribed[-2:] == ["tcp://c:1", None]


@pytest.mark.parametrize("after", [1, 13], ids=["before it is missed", "once it is missed"])
def test_stale_coordinator_loads_give_way_to_stats(after: int) -> None:
    """Engines say what changed, and nothing more until it changes again."""
    link = MemoryLink("a", "b")
    frame = msgspec.msgpack.encode([[[0, 50, 0.1], [0, 2, 0.1]], 0, False])
    link.core.loads.receive([frame], link.now)
    loads = {"a": 0, "b": 99}
    for second in range(14):
        if second == after:
            for name, running in loads.items():
                stats = Stats(scheduler_stats=SchedulerStats(num_running_reqs=running))
                link.control(link.pod(name), stats)
        link.wait(1.0)
        for name in "ab":
            pong = Pong(nonce=link.pod(name).hellos[-1].nonce)
            link.control(link.pod(name), pong)
    add(link, "one")
    assert len(link.pod("a").adds) == 1


@pytest.mark.parametrize("where", ["STATS", "outputs"])
def test_stats_update_comes_before_the_outputs(where: str) -> None:
    link = MemoryLink("a")
    add(link, sink=None)
    pod = link.pod("a")
    stats = SchedulerStats(num_running_reqs=4)
    if where == "STATS":
        events = link.control(pod, Stats(scheduler_stats=stats))
    else:
        output = EngineCoreOutput(pod.adds[0].request_id, [1])
        events = link.outputs(pod, outputs=[output], scheduler_stats=stats)
        assert [type(event) for event in events] == [LoadKnown, StatsUpdate, Delivered]
    assert of(StatsUpdate, events) == [StatsUpdate(0, stats)]


def test_stats_alone_are_worth_reading_only_to_readers_of_get_output() -> None:
    link = MemoryLink("a")
    pod = link.pod("a")
    assert of(Delivered, link.outputs(pod, scheduler_stats=SchedulerStats())) == []
    add(link, sink=None)
    (event,) = of(Delivered, link.outputs(pod, scheduler_stats=SchedulerStats()))
    assert event.queued.scheduler_stats == SchedulerStats()


class TestNobodyTakesIt:
    """Errors of add when no engine can take the request."""

    def test_not_ready(self) -> None:
        link = MemoryLink("a", ready=False)
        with pytest.raises(EngineNotReadyError, match="rank 0 at ipc://a/in: Hello"):
            add(link)

    def test_dead(self) -> None:
        link = MemoryLink("a")
        link.answers = False
        link.raw(link.pod("a"), ENGINE_CORE_DEAD)
        with pytest.raises(EngineDeadError, match="no engine is alive: rank 0"):
            add(link)
        with pytest.raises(EngineDeadError):
            link.core.calls.targets(None, link.now)

    def test_draining(self) -> None:
        link = MemoryLink("a")
        link.control(link.pod("a"), Draining())
        with pytest.raises(EngineDrainingError):
            add(link)
        assert link.core.calls.targets(None, link.now)

    def test_overloaded(self) -> None:
        link = MemoryLink("a", ready=False)
        link.answer(link.pod("a"), limits=Limits(in_flight=1))
        add(link, "one")
        with pytest.raises(OverloadedError, match="limit of 1"):
            add(link, "two")

    def test_wrong_rank(self) -> None:
        link = MemoryLink("a")
        with pytest.raises(RequestRejectedError, match="there is no engine 3"):
            add(link, rank=3)

    def test_rank_without_an_address_for_now(self) -> None:
        link = MemoryLink("a", "b")
        link.move("a")
        for ask in (lambda: add(link, rank=1), lambda: link.core.calls.targets(1, link.now)):
            with pytest.raises(EngineNotReadyError, match="engine 1 has no address now") as caught:
                ask()
            assert caught.value.retryable
        with pytest.raises(RequestRejectedError, match="there is no engine 2; engines are 0"):
            add(link, rank=2)
        link.move("a", "b")
        add(link, rank=1)

    def test_right_rank_that_is_down(self) -> None:
        link = MemoryLink("a", "b")
        link.answers = False
        link.raw(link.pod("b"), ENGINE_CORE_DEAD)
        with pytest.raises(EngineNotReadyError):
            add(link, rank=1)

    def test_closed(self) -> None:
        link = MemoryLink("a")
        link.core.close(CLOSED, link.now)
        with pytest.raises(ClientClosedError):
            add(link)

    @pytest.mark.parametrize(
        "arrange",
        [
            lambda link: link.raw(link.pod("a"), ENGINE_CORE_DEAD),
            lambda link: link.control(link.pod("a"), Draining()),
            lambda link: link.move(),
        ],
        ids=["dead", "draining", "no address"],
    )
    def test_with_retry_it_waits_for_an_engine(self, arrange) -> None:
        link = MemoryLink("a")
        arrange(link)
        record = add(link, retry=True)
        link.move("b")
        link.wait(1.0)
        assert [r.external_req_id for r in link.pod("b").adds] == [record.request_id]

    def test_with_retry_a_wrong_request_still_fails_at_once(self) -> None:
        link = MemoryLink("a")
        with pytest.raises(RequestRejectedError):
            link.core.requests.add(EngineCoreRequest("x", [5000]), SINK, link.now, retry=True)
        assert link.core.unfinished == 0

    def test_waiting_ends_at_the_deadline(self) -> None:
        link = MemoryLink("a", ready=False)
        record = add(link, retry=True, deadline=link.now + 2)
        (ended,) = of(RequestEnded, link.wait(3))
        assert ended.record is record
        assert isinstance(ended.error, RequestTimeoutError)
        assert link.core.unfinished == 0


class TestCalls:
    """Utility calls."""

    def test_reply_failure_and_stranger(self) -> None:
        link = MemoryLink("a")
        pod = link.pod("a")
        for method in ("is_sleeping", "sleep"):
            link.core.calls.send(pod.link, method, [], None, None)
        link.run()
        (ended,) = of(CallEnded, link.reply(pod, 0, True))
        assert (ended.value, ended.error) == (True, None)
        (ended,) = of(CallEnded, link.reply(pod, 1, failure="Call to sleep method failed: no"))
        assert isinstance(ended.error, UtilityError)
        assert of(CallEnded, link.reply(pod, 0, True)) == []

    def test_what_one_engine_refuses_goes_to_none(self) -> None:
        link = MemoryLink("a", "b", ready=False)
        link.answer(link.pod("a"))
        link.answer(link.pod("b"), limits=Limits(frame_bytes=60))
        links = link.core.calls.targets(None, link.now)
        with pytest.raises(RequestRejectedError, match="over this engine's limit of 60"):
            link.core.calls.send_all(links, "collective_rpc", ["f" * 60], object, None)
        link.run()
        assert link.core.calls.pending() == {}
        assert link.pod("a").calls == link.pod("b").calls == []

    def test_forgotten_call(self) -> None:
        link = MemoryLink("a")
        pod = link.pod("a")
        call = link.core.calls.send(pod.link, "is_sleeping", [], None, link.now + 5)
        link.run()
        link.core.calls.forget(call)
        link.run()
        assert of(CallEnded, link.reply(pod, 0, True)) == []
        assert of(CallEnded, link.wait(3)) == []

    def test_deadline(self) -> None:
        link = MemoryLink("a")
        link.core.calls.send(link.pod("a").link, "is_sleeping", [], None, link.now + 1)
        link.run()
        (ended,) = of(CallEnded, link.wait(2))
        assert isinstance(ended.error, RequestTimeoutError)

    @pytest.mark.parametrize("method", ["shutdown", "__init__", "add_request"])
    def test_unlisted_method(self, method: str) -> None:
        link = MemoryLink("a")
        with pytest.raises(RequestRejectedError, match="is not among the calls"):
            link.core.calls.send(link.pod("a").link, method, [], None, None)

    def test_arguments_that_cannot_travel(self) -> None:
        link = MemoryLink("a")
        with pytest.raises(RequestRejectedError) as caught:
            link.core.calls.send(link.pod("a").link, "collective_rpc", [print], None, None)
        assert caught.value.field == "args[0]"


def test_duplicate_names_only_matter_to_get_output() -> None:
    link = MemoryLink("a")
    for _ in range(3):
        add(link, "same")
    assert len({r.request_id for r in link.pod("a").adds}) == 3
    add(link, "same", sink=None)
    with pytest.raises(RequestRejectedError, match="could not tell the two apart"):
        add(link, "same", sink=None)
    assert link.core.requests.abort(["unknown", "same", "same"]) == ["same"]
    link.run()
    assert link.core.unfinished == 0
    assert len(link.pod("a").aborts) == 4


def test_a_request_ends_by_its_last_output_or_among_what_abort_returns() -> None:
    link = MemoryLink("a")
    for name in ("ended", "aborted"):
        add(link, name, sink=None)
    link.token(link.pod("a"), 0, 1, reason=FinishReason.STOP)
    assert link.core.requests.abort(["ended", "aborted"]) == ["aborted"]
    link.run()
    last = link.token(link.pod("a"), 1, 2, reason=FinishReason.ABORT)
    assert of(Delivered, last) == []
    assert link.core.requests.abort(["ended", "aborted"]) == []


def test_abort_and_add_again_never_mixes_the_two() -> None:
    link = MemoryLink("a")
    pod = link.pod("a")
    for turn in range(1000):
        add(link, "same", sink=None)
        link.core.requests.abort(["same"])
        link.run()
        record = add(link, "same", sink=None)
        assert of(Delivered, link.token(pod, 2 * turn, 1)) == []
        (event,) = of(Delivered, link.token(pod, 2 * turn + 1, 2, reason=FinishReason.STOP))
        assert event.records[0] is record
    assert link.core.unfinished == 0


def test_close_ends_everything_with_bye() -> None:
    link = MemoryLink("a", "b")
    add(link, "one")
    link.core.calls.send(link.pod("b").link, "is_sleeping", [], None, None)
    waiting = MemoryLink("c", ready=False)
    add(waiting, retry=True)
    for each in (link, waiting):
        each.core.close(CLOSED, each.now)
        events = each.run()
        assert all(isinstance(e.error, ClientClosedError) for e in of(RequestEnded, events))
        assert each.core.unfinished == 0
        assert all(close.farewell for close in each.closed)
        each.core.close(CLOSED, each.now)
        assert each.run() == []
    assert len(link.closed) == 2
