"""The processes of launched engines, one per rank. No thread, no handshake."""

import signal
import time
from collections.abc import Callable
from typing import NamedTuple

from enginecore_client._launch.process import ChildProcess, end_all, ending_of


class Exit(NamedTuple):
    """The end of a rank's process: how it came, what it wrote last, whether it was asked for."""

    rank: int
    ending: str
    last_words: str
    asked: bool


class EngineProcesses:
    """Starts, watches, replaces and ends processes.

    Args:
        make: starts the process of a rank.
        stop_seconds: from SIGTERM to SIGKILL, where a process is replaced.
    """

    def __init__(self, make: Callable[[int], ChildProcess], stop_seconds: float) -> None:
        self._make = make
        self._stop_seconds = stop_seconds
        self._children: dict[int, ChildProcess] = {}
        self._kill_at: dict[int, float] = {}

    @property
    def pids(self) -> dict[int, int]:
        """Return the processes that run, by rank; callable from any thread."""
        return {rank: child.pid for rank, child in list(self._children.items())}

    @property
    def children(self) -> list[ChildProcess]:
        """Return the processes that run."""
        return list(self._children.values())

    def __contains__(self, rank: int) -> bool:
        return rank in self._children

    def start(self, rank: int) -> None:
        """Start the process of a rank that has none.

        Raises:
            OSError: the system has no room for another process.
        """
        self._children[rank] = self._make(rank)

    def stop(self, rank: int) -> None:
        """Ask a process to end; it is killed when its time is over."""
        if rank not in self._kill_at:
            self._kill_at[rank] = time.monotonic() + self._stop_seconds
            self._children[rank].terminate()

    def ended(self) -> list[Exit]:
        """Return those that ended since the last look; kill those whose time is over."""
        now = time.monotonic()
        exits = []
        for rank, child in list(self._children.items()):
            status = child.poll()
            if status is not None:
                child.close()
                del self._children[rank]
                asked = self._kill_at.pop(rank, None) is not None
                exits.append(Exit(rank, ending_of(status), child.last_words, asked))
            elif now > self._kill_at.get(rank, now):
                child.signal(signal.SIGKILL)
        return exits

    def end_all(self, stop_seconds: float) -> None:
        """End every process, by SIGKILL after `stop_seconds`; wait until they are gone."""
        end_all(self.children, stop_seconds)
        self._children.clear()
