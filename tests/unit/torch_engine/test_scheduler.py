"""What each step computes, as tables of steps; and no block is ever lost."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enginecore_torch.blocks import BlockPool
from enginecore_torch.scheduler import Pause, Scheduler, SchedulerLimits
from enginecore_torch.sequence import Sequence, SequenceStatus
from enginecore_wire.outputs import EventType
from enginecore_wire.requests import EngineCoreRequest, SamplingParams

Step = dict[str, tuple[int, int]]


def make(
    *, blocks: int = 64, size: int = 4, seqs: int = 8, budget: int = 64, **limits: Any
) -> Scheduler:
    return Scheduler(BlockPool(blocks, size), SchedulerLimits(seqs, budget, **limits))


class Driver:
    """Adds sequences and takes steps, giving each due sequence one more token."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.order = 0
        self.sequences: dict[str, Sequence] = {}

    def add(self, name: str, prompt: Iterable[int], **fields: Any) -> Sequence:
        self.order += 1
        params = fields.pop("params", SamplingParams())
        request = EngineCoreRequest(name, list(prompt), **fields)
        sequence = self.sequences[name] = Sequence(request, params, self.order)
        self.scheduler.add(sequence, now=float(self.order))
        return sequence

    def step(self) -> Step:
        """Return {id: (start, count)} of one step."""
        batch = self.scheduler.schedule(now=0.0)
        self.scheduler.advance(batch)
        for item in batch:
            if item.samples:
                item.sequence.tokens.append(1000 + item.sequence.num_outputs)
        return {item.sequence.request_id: (item.start, item.count) for item in batch}


@pytest.mark.parametrize(
    ("limits", "prompts", "steps"),
    [
        pytest.param(
            {}, {"a": 3, "b": 5},
            [{"a": (0, 3), "b": (0, 5)}, {"a": (3, 1), "b": (5, 1)}, {"a": (4, 1), "b": (6, 1)}],
            id="all at once",
        ),
        pytest.param(
            {"budget": 4}, {"a": 10},
            [{"a": (0, 4)}, {"a": (4, 4)}, {"a": (8, 2)}, {"a": (10, 1)}],
            id="chunks of the budget",
        ),
        pytest.param(
            {"budget": 4}, {"a": 3, "b": 6},
            [{"a": (0, 3), "b": (0, 1)}, {"a": (3, 1), "b": (1, 3)}, {"a": (4, 1), "b": (4, 2)},
             {"a": (5, 1), "b": (6, 1)}],
            id="decodes share the budget with chunks",
        ),
        pytest.param(
            {"seqs": 1}, {"a": 2, "b": 2},
            [{"a": (0, 2)}, {"a": (2, 1)}],
            id="no more sequences than allowed",
        ),
        pytest.param(
            {"blocks": 4, "size": 2, "prefix_caching": False}, {"a": 3, "b": 3},
            [{"a": (0, 3)}, {"a": (3, 1)}, {"a": (4, 1)}, {"a": (5, 1)}],
            id="waits for blocks",
        ),
    ],
)  # fmt: skip
def test_steps(limits: dict[str, int], prompts: dict[str, int], steps: list[Step]) -> None:
    driver = Driver(make(**limits))
    for name, length in prompts.items():
        driver.add(name, range(length))
    assert [driver.step() for _ in steps] == steps


def test_the_last_one_gives_up_its_blocks_and_is_computed_anew() -> None:
    driver = Driver(make(blocks=5, size=2, prefix_caching=False))
    first, last = driver.add("a", [1, 2, 3, 4]), driver.add("b", [5, 6, 7, 8])
    assert driver.step() == {"a": (0, 4), "b": (0, 4)}
    assert driver.step() == {"a": (4, 1)}
    assert (last.status, last.block_ids, last.num_computed) == (SequenceStatus.PREEMPTED, [], 0)
    assert (driver.scheduler.num_running, driver.scheduler.num_waiting) == (1, 1)
    driver.scheduler.finish("a")
    assert first.status is SequenceStatus.FINISHED
    assert driver.step() == {"b": (0, 5)}
    assert driver.step() == {"b": (5, 1)}
    kinds = [event.type for event in last.take_events() or ()]
    assert kinds == [
        EventType.QUEUED, EventType.SCHEDULED, EventType.PREEMPTED, EventType.SCHEDULED,
    ]  # fmt: skip
    assert last.take_events() is None


def test_a_sequence_that_alone_needs_more_gives_itself_up_last() -> None:
    driver = Driver(make(blocks=4, size=2, prefix_caching=False))
    driver.add("a", [1, 2, 3])
    driver.add("b", [4])
    assert driver.step() == {"a": (0, 3), "b": (0, 1)}
    assert driver.step() == {"a": (3, 1), "b": (1, 1)}
    assert driver.step() == {"a": (4, 1)}


@pytest.mark.parametrize(
    ("policy", "order"), [("fcfs", ["low", "mid", "high"]), ("priority", ["high", "mid", "low"])]
)
def test_order_of_service(policy: str, order: list[str]) -> None:
    driver = Driver(make(seqs=1, policy=policy))
    for name, priority in (("low", 5), ("mid", 0), ("high", -5)):
        driver.add(name, [1, 2], priority=priority)
    served = []
    while driver.scheduler.num_in_service:
        (name,) = driver.step()
        served.append(name)
        driver.scheduler.finish(name)
    assert served == order


@pytest.mark.parametrize(("policy", "victim"), [("fcfs", "urgent"), ("priority", "first")])
def test_who_is_preempted(policy: str, victim: str) -> None:
    driver = Driver(make(blocks=5, size=2, policy=policy, prefix_caching=False))
    driver.add("first", [1, 2, 3, 4], priority=9)
    driver.add("urgent", [5, 6, 7, 8], priority=0)
    assert set(driver.step()) == {"first", "urgent"}
    (served,) = driver.step()
    assert driver.sequences[victim].status is SequenceStatus.PREEMPTED
    assert served != victim


def test_a_known_prefix_is_not_computed_again() -> None:
    driver = Driver(make())
    driver.add("a", range(10))
    assert driver.step() == {"a": (0, 10)}
    b, c = driver.add("b", range(10)), driver.add("c", [*range(8), 99, 98])
    d = driver.add("d", range(8))
    assert driver.step() == {"a": (10, 1), "b": (8, 2), "c": (8, 2), "d": (4, 4)}
    assert (b.num_cached, c.num_cached, d.num_cached) == (8, 8, 4)
    assert b.block_ids[:2] == c.block_ids[:2] == driver.sequences["a"].block_ids[:2]
    stats = driver.scheduler.take_cache_stats()
    assert (stats.requests, stats.queries, stats.hits) == (4, 38, 20)
    assert driver.scheduler.take_cache_stats().queries == 0


@pytest.mark.parametrize(
    ("limits", "fields", "cached"),
    [
        ({}, {}, 8),
        ({"prefix_caching": False}, {}, 0),
        ({}, {"cache_salt": "mine"}, 0),
        ({}, {"params": SamplingParams(prompt_logprobs=1)}, 0),
        ({}, {"params": SamplingParams(skip_reading_prefix_cache=True)}, 0),
    ],
    ids=["cached", "switched off", "salted", "prompt logprobs", "not wanted"],
)
def test_who_reads_the_cache(limits: dict[str, Any], fields: dict[str, Any], cached: int) -> None:
    driver = Driver(make(**limits))
    driver.add("a", range(10))
    driver.step()
    driver.scheduler.finish("a")
    driver.add("b", range(10), **fields)
    assert driver.step() == {"b": (cached, 10 - cached)}


def test_resetting_the_cache_needs_every_block_back() -> None:
    driver = Driver(make())
    driver.add("a", range(10))
    driver.step()
    assert driver.scheduler.reset_cache() is False
    driver.scheduler.preempt_all(now=0.0)
    assert driver.scheduler.reset_cache() is True
    assert driver.step() == {"a": (0, 11)}
    assert driver.scheduler.take_cache_stats().reset is True


@pytest.mark.parametrize(
    ("pause", "during"),
    [(Pause.NEW, {"old": (2, 1)}), (Pause.ALL, {})],
    ids=["new ones wait", "all wait"],
)
def test_pause(pause: Pause, during: Step) -> None:
    driver = Driver(make())
    driver.add("old", [1, 2])
    driver.step()
    driver.scheduler.set_pause(pause)
    driver.add("new", [3, 4])
    driver.add("gone", [5])
    driver.scheduler.finish("gone")
    assert driver.step() == during
    assert driver.scheduler.num_in_service == 1
    assert driver.scheduler.num_waiting == 1
    assert driver.scheduler.has_work is bool(during)
    driver.scheduler.finish("old")
    assert driver.step() == {}
    assert not driver.scheduler.has_work
    driver.scheduler.set_pause(Pause.NONE)
    assert driver.step() == {"new": (0, 2)}


def test_what_waits_and_ends_is_forgotten() -> None:
    driver = Driver(make(seqs=1))
    driver.add("running", [1])
    driver.step()
    for index in range(1000):
        driver.add(f"{index}", [1])
        driver.scheduler.finish(f"{index}")
    assert driver.scheduler.num_waiting == 0
    assert len(driver.scheduler._waiting) < 100
    assert driver.scheduler.finish("unknown") is None


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_no_block_is_lost(data: st.DataObject) -> None:
    """Whatever comes, goes and is preempted, in any order: invariants hold after every step."""
    blocks = data.draw(st.integers(12, 30), "blocks")
    size = data.draw(st.integers(1, 5), "size")
    budget = data.draw(st.integers(1, 30), "budget")
    driver = Driver(
        make(
            blocks=blocks, size=size, budget=budget, seqs=data.draw(st.integers(1, 6), "seqs"),
            policy=data.draw(st.sampled_from(["fcfs", "priority"]), "policy"),
            prefix_caching=data.draw(st.booleans(), "caching"),
        )
    )  # fmt: skip
    scheduler, longest = driver.scheduler, (blocks - 1) * size
    lengths = st.integers(1, min(longest - 1, 25))
    for index in range(data.draw(st.integers(1, 40), "actions")):
        action = data.draw(st.sampled_from(["add", "step", "step", "step", "abort", "preempt"]))
        if action == "add":
            shared = data.draw(st.integers(0, 2))
            prompt = [shared] * data.draw(lengths)
            driver.add(f"{index}", prompt, priority=data.draw(st.integers(0, 2)))
        elif action == "abort" and driver.sequences:
            scheduler.finish(data.draw(st.sampled_from(sorted(driver.sequences))))
        elif action == "preempt":
            scheduler.preempt_all(now=0.0)
        else:
            assert sum(count for _, count in driver.step().values()) <= budget
        for sequence in list(scheduler):
            if len(sequence.tokens) >= longest:
                scheduler.finish(sequence.request_id)
        check_invariants(scheduler)
    for _ in range(2000):
        if not scheduler.num_in_service:
            break
        done = [name for name in driver.step() if driver.sequences[name].num_outputs]
        for name in done:
            scheduler.finish(name)
    assert scheduler.num_in_service == scheduler.num_running == scheduler.num_waiting == 0
    assert scheduler.pool.num_free == scheduler.pool.capacity


def check_invariants(scheduler: Scheduler) -> None:
    held: dict[int, int] = {}
    running = [s for s in scheduler if s.status is SequenceStatus.RUNNING]
    assert len(running) == scheduler.num_running <= scheduler.limits.max_num_seqs
    assert sum(1 for _ in scheduler) == scheduler.num_running + scheduler.num_waiting
    for sequence in scheduler:
        assert (sequence.status is SequenceStatus.RUNNING) or not sequence.block_ids
        assert sequence.num_computed <= len(sequence.block_ids) * scheduler.pool.block_size
        for block in sequence.block_ids:
            held[block] = held.get(block, 0) + 1
    pool = scheduler.pool
    assert {b: n for b, n in enumerate(pool._references) if n} == held
    assert set(pool._free) == set(range(1, pool.num_blocks)) - set(held)
    assert {block: digest for digest, block in pool._block_of.items()} == pool._digest_of
