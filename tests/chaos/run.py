"""Runs: a cluster, clients under way, faults as a seed has them or pods replaced one after
another, and a verdict."""

import heapq
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from chaos.checker import Histories, Verdict, judge
from chaos.client import PATIENT
from chaos.cluster import Cluster
from chaos.crowd import Crowd
from chaos.faults import KILLS, Fault, schedule
from chaos.journal import read_journal
from support.eventually import eventually

RANKS: Final = 3
CLIENTS: Final = 4
LOOK_SECONDS: Final = 0.05
BEGIN_SECONDS: Final = 60.0


class Report(NamedTuple):
    """What happened in a run."""

    seed: int
    faults: Counter[str]
    verdict: Verdict

    @property
    def kills(self) -> int:
        """Return how many faults were kills."""
        return sum(self.faults[kind] for kind in KILLS)

    def lines(self) -> list[str]:
        """Return the report, to be read."""
        faults = ", ".join(f"{count} {kind}" for kind, count in sorted(self.faults.items()))
        endings = ", ".join(f"{count} {how}" for how, count in self.verdict.endings.most_common())
        return [
            f"seed {self.seed}: {self.faults.total()} faults, {self.kills} of them kills: {faults}",
            f"{self.verdict.endings.total()} requests: {endings}",
            *self.verdict.violations,
        ]


class Timeline:
    """What is to be done, and when."""

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._order = count()
        self._due: list[tuple[float, int, Callable[[], None]]] = []

    def at(self, seconds: float, action: Callable[[], None]) -> None:
        """Have something done so many seconds after the beginning."""
        heapq.heappush(self._due, (self._begin + seconds, next(self._order), action))

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Have something done so many seconds from now."""
        self.at(time.monotonic() - self._begin + seconds, action)

    def run(self, keep: Callable[[], None]) -> None:
        """Do all of it; `keep` is called all the while."""
        while self._due:
            keep()
            if self._due[0][0] <= time.monotonic():
                heapq.heappop(self._due)[2]()
            else:
                time.sleep(LOOK_SECONDS)


def run(seconds: float, seed: int, directory: Path) -> Report:
    """Have things go wrong for `seconds`; return what came of it.

    Raises:
        AssertionError: processes do not end, or pods do not come to rest, when all is well again.
    """
    faults = schedule(Random(seed), seconds, RANKS)
    with _under_load(directory, seed, "any") as (cluster, crowd):
        timeline = Timeline()

        def suffer(fault: Fault) -> None:
            if fault.kind == "client":
                crowd.kill(fault.rank)
            else:
                cluster.suffer(fault, timeline.later)

        for fault in faults:
            timeline.at(fault.at, partial(suffer, fault))

        def keep() -> None:
            cluster.keep()
            crowd.keep()

        timeline.run(keep)
        verdict = _ended(cluster, crowd)
    return Report(seed, Counter(fault.kind for fault in faults), verdict)


def roll(times: int, seed: int, directory: Path) -> Report:
    """Replace pods in order, one after another, so many times; return what came of it.

    Raises:
        AssertionError: see `run`.
    """
    with _under_load(directory, seed, PATIENT) as (cluster, crowd):
        for number in range(times):
            cluster.replace(number % RANKS)
            crowd.keep()
        verdict = _ended(cluster, crowd)
    return Report(seed, Counter({"drain": times}), verdict)


@contextmanager
def _under_load(directory: Path, seed: int, callers: str) -> Iterator[tuple[Cluster, Crowd]]:
    """Give a cluster and clients that have had their first answers."""
    with (
        Cluster(directory, RANKS) as cluster,
        Crowd(directory, cluster.addresses, seed, CLIENTS, callers) as crowd,
    ):
        cluster.wait_ready()
        eventually(crowd.began, "every client has had an answer", deadline=BEGIN_SECONDS)
        yield cluster, crowd


def _ended(cluster: Cluster, crowd: Crowd) -> Verdict:
    """Let everybody end in order, and judge what they wrote down."""
    crowd.stop(cluster.keep)
    cluster.settle()
    return judge(
        Histories(
            {name: read_journal(file) for name, file in crowd.journals().items()},
            {name: read_journal(file) for name, file in cluster.journals().items()},
            frozenset(crowd.killed),
            frozenset(cluster.orderly),
            frozenset(cluster.stuck),
        )
    )
