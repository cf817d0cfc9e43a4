"""What each step computes: continuous batching with chunked prefill over a block pool."""

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from heapq import heapify, heappop, heappush
from typing import Literal

from enginecore_torch.blocks import BlockPool, extend_digests
from enginecore_torch.sequence import Sequence, SequenceStatus
from enginecore_wire.outputs import EventType, PrefixCacheStats

Policy = Literal["fcfs", "priority"]
Key = tuple[int, int]


class Pause(Enum):
    """What the scheduler leaves alone: nothing, sequences that come from now on, or all."""

    NONE = auto()
    NEW = auto()
    ALL = auto()


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Bounds of one step: sequences that run, tokens computed, and the order of service.

    With policy `priority` lower numbers go first; ties, and everything under `fcfs`, go by
    arrival.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    policy: Policy = "fcfs"
    prefix_caching: bool = True


@dataclass(frozen=True, slots=True)
class ScheduledSequence:
    """Compute `count` tokens of `sequence` from position `start` on."""

    sequence: Sequence
    start: int
    count: int

    @property
    def samples(self) -> bool:
        """Whether the last token computed is the last one known, so that the next is due."""
        return self.start + self.count == len(self.sequence.tokens)


class Scheduler:
    """Holds the unfinished sequences and decides which of their tokens a step computes.

    Running sequences come first, in order of service; each gets blocks for its next tokens,
    and when none are left the last running sequence gives up its own and is computed anew
    later. What is left of the token budget goes to waiting sequences.
    """

    def __init__(self, pool: BlockPool, limits: SchedulerLimits) -> None:
        self.pool = pool
        self.limits = limits
        self._sequences: dict[str, Sequence] = {}
        self._waiting: list[tuple[Key, Sequence]] = []
        self._num_waiting = 0
        self._held: list[Sequence] = []
        self._pause = Pause.NONE
        self._running: list[Sequence] = []
        self._cache_stats = PrefixCacheStats()

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._sequences

    def __iter__(self) -> Iterator[Sequence]:
        return iter(list(self._sequences.values()))

    @property
    def num_waiting(self) -> int:
        """Sequences that hold no blocks."""
        return self._num_waiting

    @property
    def num_running(self) -> int:
        """Sequences that hold blocks."""
        return len(self._running)

    @property
    def pause(self) -> Pause:
        """What is paused now."""
        return self._pause

    @property
    def has_work(self) -> bool:
        """Whether a step would compute anything, now or once blocks are free."""
        return self._pause is not Pause.ALL and self.num_in_service > 0

    @property
    def num_in_service(self) -> int:
        """Unfinished sequences that came before the pause, if there is one."""
        held = sum(sequence.status is SequenceStatus.WAITING for sequence in self._held)
        return len(self._sequences) - held

    def add(self, sequence: Sequence, now: float) -> None:
        """Queue a new sequence; `now` is monotonic seconds."""
        self._sequences[sequence.request_id] = sequence
        self._num_waiting += 1
        if self._pause is Pause.NONE:
            self._enqueue(sequence)
        else:
            self._held.append(sequence)
        sequence.record(EventType.QUEUED, now)

    def set_pause(self, pause: Pause) -> None:
        """Pause, or with `Pause.NONE` go on with everything that queued up meanwhile."""
        self._pause = pause
        if pause is Pause.NONE:
            held, self._held = self._held, []
            for sequence in held:
                if sequence.status is SequenceStatus.WAITING:
                    self._enqueue(sequence)

    def finish(self, request_id: str) -> Sequence | None:
        """Remove a sequence and free its blocks; return it, or None if it is unknown."""
        sequence = self._sequences.pop(request_id, None)
        if sequence is None:
            return None
        if sequence.status is SequenceStatus.RUNNING:
            self._running.remove(sequence)
            self._free(sequence)
        else:
            self._num_waiting -= 1
        sequence.status = SequenceStatus.FINISHED
        return sequence

    def schedule(self, now: float) -> list[ScheduledSequence]:
        """Choose what the next step computes, in order of service; `now` is monotonic seconds."""
        batch: list[ScheduledSequence] = []
        if self._pause is Pause.ALL:
            return batch
        budget = self.limits.max_num_batched_tokens
        index, preempted = 0, False
        while index < len(self._running) and budget > 0:
            sequence = self._running[index]
            count = min(sequence.num_uncomputed, budget)
            preempted |= self._make_room(sequence, count, now)
            if sequence.status is not SequenceStatus.RUNNING:
                break
            batch.append(ScheduledSequence(sequence, sequence.num_computed, count))
            budget -= count
            index += 1
        while not preempted and budget > 0:
            waiting = self._next_waiting()
            if waiting is None or len(self._running) >= self.limits.max_num_seqs:
                break
            count = self._start(waiting, budget, now)
            if count == 0:
                break
            batch.append(ScheduledSequence(waiting, waiting.num_computed, count))
            budget -= count
        return batch

    def advance(self, batch: list[ScheduledSequence]) -> None:
        """Note that `batch` is computed: its tokens now have keys and values in the cache."""
        for item in batch:
            item.sequence.num_computed = item.start + item.count
            if self.limits.prefix_caching:
                self._remember(item.sequence)

    def preempt_all(self, now: float) -> None:
        """Take the blocks from every running sequence; they wait to be computed anew."""
        while self._running:
            self._preempt(self._running[-1], now)

    def take_cache_stats(self) -> PrefixCacheStats:
        """Return the use of the prefix cache since the last call."""
        stats, self._cache_stats = self._cache_stats, PrefixCacheStats()
        return stats

    def reset_cache(self) -> bool:
        """Empty the prefix cache, unless blocks are held; say whether it was done."""
        if self.pool.num_free != self.pool.capacity:
            return False
        self.pool.forget()
        self._cache_stats.reset = True
        return True

    def _key(self, sequence: Sequence) -> Key:
        first = sequence.priority if self.limits.policy == "priority" else 0
        return first, sequence.order

    def _enqueue(self, sequence: Sequence) -> None:
        if len(self._waiting) > 2 * self._num_waiting + 64:  # mostly finished ones
            self._waiting = [
                entry for entry in self._waiting if entry[1].status is not SequenceStatus.FINISHED
            ]
            heapify(self._waiting)
        heappush(self._waiting, (self._key(sequence), sequence))

    def _next_waiting(self) -> Sequence | None:
        while self._waiting:
            sequence = self._waiting[0][1]
            if sequence.status is not SequenceStatus.FINISHED:
                return sequence
            heappop(self._waiting)
        return None

    def _make_room(self, sequence: Sequence, count: int, now: float) -> bool:
        """Give `sequence` blocks for `count` more tokens; say whether one was preempted."""
        preempted = False
        need = self.pool.blocks_for(sequence.num_computed + count) - len(sequence.block_ids)
        while need > self.pool.num_free:
            preempted = True
            victim = self._running[-1]
            self._preempt(victim, now)
            if victim is sequence:
                return True
        if need > 0:
            sequence.block_ids += self.pool.allocate(need)
        return preempted

    def _start(self, sequence: Sequence, budget: int, now: float) -> int:
        """Let a waiting sequence run if blocks allow; return how many tokens it computes."""
        cached = self._find_prefix(sequence)
        computed = len(cached) * self.pool.block_size
        count = min(len(sequence.tokens) - computed, budget)
        need = self.pool.blocks_for(computed + count) - len(cached)
        if need > self.pool.num_free - self.pool.count_free(cached):
            return 0
        self._count_lookup(sequence, computed)
        self.pool.hold(cached)
        heappop(self._waiting)
        self._num_waiting -= 1
        sequence.block_ids = cached + self.pool.allocate(need)
        sequence.registered_blocks = len(cached)
        sequence.num_computed = computed
        if sequence.num_cached is None:
            sequence.num_cached = computed
        sequence.status = SequenceStatus.RUNNING
        insort(self._running, sequence, key=self._key)
        sequence.record(EventType.SCHEDULED, now)
        return count

    def _find_prefix(self, sequence: Sequence) -> list[int]:
        if not (self.limits.prefix_caching and sequence.reads_cache):
            return []
        size = self.pool.block_size
        usable = len(sequence.tokens) - 1  # the last token is computed to get its logits
        extend_digests(sequence.digests, sequence.tokens, size, sequence.cache_salt, usable)
        return self.pool.find(sequence.digests[: usable // size])

    def _count_lookup(self, sequence: Sequence, hits: int) -> None:
        if not (self.limits.prefix_caching and sequence.reads_cache):
            return
        stats = self._cache_stats
        if sequence.preemptions:
            stats.preempted_requests += 1
            stats.preempted_queries += len(sequence.tokens)
            stats.preempted_hits += hits
        else:
            stats.requests += 1
            stats.queries += len(sequence.tokens)
            stats.hits += hits

    def _remember(self, sequence: Sequence) -> None:
        full = sequence.num_computed // self.pool.block_size
        if sequence.registered_blocks >= full:
            return
        extend_digests(
            sequence.digests, sequence.tokens, self.pool.block_size, sequence.cache_salt,
            sequence.num_computed,
        )  # fmt: skip
        for index in range(sequence.registered_blocks, full):
            self.pool.remember(sequence.block_ids[index], sequence.digests[index])
        sequence.registered_blocks = full

    def _preempt(self, sequence: Sequence, now: float) -> None:
        self._running.remove(sequence)
        self._free(sequence)
        sequence.status = SequenceStatus.PREEMPTED
        sequence.preemptions += 1
        sequence.record(EventType.PREEMPTED, now)
        self._num_waiting += 1
        self._enqueue(sequence)

    def _free(self, sequence: Sequence) -> None:
        self.pool.release(sequence.block_ids)
        sequence.block_ids = []
        sequence.registered_blocks = 0
        sequence.num_computed = 0
