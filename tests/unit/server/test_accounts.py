"""What engine messages lead to in the books: times, ends, the cache. No sockets, no engine."""

import time
from typing import Any

import msgspec
import pytest

from enginecore_server.accounts import OutputAccounts
from enginecore_server.heads import decoder
from enginecore_server.model_facts import ModelInputs
from enginecore_server.sessions import Side
from enginecore_server.state import ServerState
from enginecore_wire.contract import ModelConfig, ServerConfig
from enginecore_wire.outputs import (
    EngineCoreEvent,
    EngineCoreOutput,
    EngineCoreOutputs,
    EventType,
    FinishReason,
    PrefixCacheStats,
    SchedulerStats,
)


class Books:
    """The accounts of one client with the request `r`, which came `ago` seconds before now."""

    def __init__(self, ago: float = 1.0) -> None:
        self.state = ServerState(
            ServerConfig(name="n", model=ModelConfig("/m")), ModelInputs(100), 7
        )
        self.tally = self.state.tally
        book = self.state.book
        for fd, side in enumerate(Side):
            book.hello(side, b"client", b"nonce", "c", fd, 1)
        session = book.find(b"client")
        assert session is not None
        self.start = time.monotonic() - ago
        book.add(session, "r", 3, self.start)
        self._accounts = OutputAccounts(self.state)
        self._decode = decoder().decode

    def message(
        self,
        events: Any = None,
        finish: FinishReason | None = None,
        tokens: tuple[int, ...] = (5,),
        stats: SchedulerStats | None = None,
    ) -> None:
        output = EngineCoreOutput("r", list(tokens), finish_reason=finish, events=events)
        body = msgspec.msgpack.encode(EngineCoreOutputs(outputs=[output], scheduler_stats=stats))
        self._accounts.book([self._decode(body)])

    def event(self, kind: EventType, after: float) -> EngineCoreEvent:
        return EngineCoreEvent(kind, self.start + after)


def test_times_are_those_between_the_events_of_a_request() -> None:
    books, E = Books(ago=10.0), EventType  # noqa: N806 - short, as it is used as a name
    books.message([books.event(E.QUEUED, 0.1), books.event(E.SCHEDULED, 4.1)])
    books.message([books.event(E.PREEMPTED, 9.0), books.event(E.SCHEDULED, 9.5)])
    books.message(finish=FinishReason.LENGTH)
    tally = books.tally
    assert tally.queue.total == pytest.approx(4.0)
    assert tally.prefill.total == pytest.approx(5.9, abs=0.5)
    assert tally.inference.total == pytest.approx(tally.prefill.total + tally.decode.total)
    assert tally.whole_request.total == pytest.approx(10.0, abs=0.5)
    assert tally.preemptions == 1
    assert tally.finished["length"] == 1
    assert [sum(each.counts) for each in (tally.queue, tally.decode)] == [1, 1]


@pytest.mark.parametrize(
    "events",
    [None, [], [{"type": 99, "timestamp": 1.0}], [{"type": 1}], "odd", [[1, 2.0]]],
    ids=["none", "no event", "unknown", "without a time", "text", "array"],
)
def test_an_engine_may_tell_no_events_or_odd_ones(events: Any) -> None:
    books = Books()
    books.message(events)
    books.message(finish=FinishReason.STOP)
    assert sum(books.tally.queue.counts) == 0
    assert sum(books.tally.decode.counts) == 1
    assert books.tally.generation_tokens == 2
    assert len(books.state.book.requests) == 0


def test_an_end_without_a_token_has_no_time_of_decoding() -> None:
    books = Books()
    books.message(finish=FinishReason.ERROR, tokens=())
    assert sum(books.tally.decode.counts) == 0
    assert books.tally.finished["error"] == 1


def test_use_of_the_cache_is_added_up() -> None:
    books = Books()
    for queries, hits in ((100, 40), (10, 2)):
        cache = PrefixCacheStats(queries=queries, hits=hits)
        books.message(stats=SchedulerStats(prefix_cache_stats=cache))
    assert (books.tally.prefix_queries, books.tally.prefix_hits) == (110, 42)
