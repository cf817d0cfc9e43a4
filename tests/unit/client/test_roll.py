"""Messages for the requests that the message before was for, and all that must end that."""

from collections.abc import Callable
from typing import Any

import pytest

from enginecore_client import FinishReason
from enginecore_client._core.events import Delivered, RequestEnded, StatsUpdate
from enginecore_wire.outputs import EngineCoreOutput, SchedulerStats
from support.core_steps import add, of
from support.memory_link import MemoryLink, MemoryPod


class Story:
    """Three requests on one engine, of which two messages have come: the roll is made."""

    def __init__(self, **last: Any) -> None:
        self.link = MemoryLink("a")
        self.pod: MemoryPod = self.link.pod("a")
        add(self.link, "x")
        add(self.link, "y")
        self.last = add(self.link, "z", **last)
        for _ in range(2):
            self.send("xyz")

    def send(self, names: str, ended: str = "", **fields: Any) -> str:
        """Have the engine send an output for each name; return whom they were delivered to."""
        outputs = [
            EngineCoreOutput(
                self.internal_id(name),
                [7],
                finish_reason=FinishReason.STOP if name in ended else None,
            )
            for name in names
        ]
        self.events = self.link.outputs(self.pod, outputs=outputs, **fields)
        events = of(Delivered, self.events)
        delivered = [
            pair for event in events for pair in zip(event.records, event.outputs, strict=True)
        ]
        assert all(record.request_id == output.request_id for record, output in delivered)
        return "".join(output.request_id for _, output in delivered)

    def internal_id(self, name: str) -> str:
        ids = [each.request_id for each in self.pod.adds]
        return next(each for each in ids if each.startswith(f"{name}-"))


def _lose(story: Story) -> None:
    story.link.down(story.pod)
    story.link.wait(10.0)


CHANGES: dict[str, tuple[Callable[[Story], Any], str]] = {
    "nothing": (lambda _: None, "xyz"),
    "aborted": (lambda story: story.link.core.requests.abort(["y"]), "xz"),
    "ended": (lambda story: story.send("xyz", ended="y"), "xz"),
    "ended alone": (lambda story: story.send("y", ended="y"), "xz"),
    "another order": (lambda story: story.send("zyx"), "xyz"),
    "fewer": (lambda story: story.send("x"), "xyz"),
    "twice in one": (lambda story: story.send("xyyz"), "xyz"),
    "nobody": (lambda story: story.send(""), "xyz"),
    "one more": (lambda story: add(story.link, "w"), "xyz"),
    "engine gone": (lambda story: _lose(story), ""),
}


@pytest.mark.parametrize("change", CHANGES)
def test_later_messages_reach_whoever_is_there(change: str) -> None:
    act, reached = CHANGES[change]
    story = Story()
    act(story)
    for _ in range(3):
        assert story.send("xyz") == reached


def test_a_message_that_ends_a_request_ends_it_once() -> None:
    story = Story()
    assert story.send("xyyz", ended="y") == "xyz"
    assert story.link.core.unfinished == 2


def test_tokens_are_counted_for_the_error_of_a_deadline() -> None:
    story = Story(deadline=0.5)
    for _ in range(3):
        assert story.send("xyz") == "xyz"
    (ended,) = of(RequestEnded, story.link.wait(0.6))
    assert ended.record is story.last
    assert "it had 5 tokens" in ended.error.message


def test_a_request_of_get_output_stays_apart() -> None:
    story = Story(sink=None)
    assert story.send("xyz") == "xyz"
    (event,) = of(Delivered, story.events)
    assert [output.request_id for output in event.queued.outputs] == ["z"]


def test_what_else_a_message_says_is_not_lost() -> None:
    story = Story()
    assert story.send("xyz", scheduler_stats=SchedulerStats(num_running_reqs=3)) == "xyz"
    (update,) = of(StatsUpdate, story.events)
    assert update.stats.num_running_reqs == 3


def test_a_request_that_went_to_another_engine_is_not_its_former_ones() -> None:
    link = MemoryLink("a", "b")
    record = add(link, "x", retry=True)
    first, second = (link.pod(name) for name in "ab")
    if not first.adds:
        first, second = second, first
    outputs = [EngineCoreOutput(first.adds[0].request_id, [])]
    for _ in range(3):
        assert len(of(Delivered, link.outputs(first, outputs=outputs))) == 1
    link.down(first)
    link.wait(1.0)
    assert of(Delivered, link.outputs(second, outputs=outputs)) == []
    (event,) = of(Delivered, link.token(second, 0, 7))
    assert event.records == [record]
