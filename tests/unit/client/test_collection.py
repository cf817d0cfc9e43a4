"""The garbage collector rests while a burst is read, and is as it was afterwards."""

import gc
import os
from collections.abc import Callable, Iterator

import pytest

from enginecore_client._shell.collection import GarbageCollector, NoCollection


@pytest.fixture(params=[True, False], ids=["on", "off"])
def collects(request: pytest.FixtureRequest) -> Iterator[bool]:
    """The collector on, or off, as a process may have it."""
    before = gc.isenabled()
    (gc.enable if request.param else gc.disable)()
    yield request.param
    (gc.enable if before else gc.disable)()


def plainly() -> None:
    with NoCollection():
        assert not gc.isenabled()


def failing() -> None:
    with pytest.raises(LookupError, match="broke"), NoCollection():
        raise LookupError("broke")


def one_in_the_other() -> None:
    with NoCollection(), NoCollection():
        assert not gc.isenabled()


def one_after_the_other() -> None:
    """As two threads may: the second begins before the first ends, and ends after it."""
    first, second = NoCollection(), NoCollection()
    first.__enter__()
    second.__enter__()
    first.__exit__()
    second.__exit__()


@pytest.mark.parametrize("blocks", [plainly, failing, one_in_the_other, one_after_the_other])
def test_the_collector_is_as_it_was(collects: bool, blocks: Callable[[], None]) -> None:
    for _ in range(2):
        blocks()
        assert gc.isenabled() is collects


def test_it_runs_between_the_bursts_of_busy_clients() -> None:
    """One of them is in a burst at any time."""
    one, two = NoCollection(), NoCollection()
    one.__enter__()
    for _ in range(3):
        two.__enter__()
        one.__exit__()
        assert gc.isenabled()
        one.__enter__()
        two.__exit__()
    one.__exit__()


def test_a_fork_from_inside_a_burst_has_it_on() -> None:
    with NoCollection():
        child = os.fork()
        if child == 0:
            os._exit(0 if gc.isenabled() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_fork_while_another_thread_looks_is_not_stuck() -> None:
    collector = GarbageCollector()
    collector._lock.acquire()
    collector.forked()
    collector.rest()
    collector.wake()
    assert gc.isenabled()
