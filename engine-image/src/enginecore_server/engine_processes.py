"""The processes that an engine cannot lose: the EngineCore and the workers it started."""

import asyncio
import contextlib
import os
from collections.abc import Callable

from enginecore_server.processes import descendants, title


class EngineProcesses:
    """Watches processes that are not this process's own children, by their pidfds.

    Args:
        ended: called with a sentence for each of them that ends.
    """

    def __init__(self, ended: Callable[[str], None]) -> None:
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._pidfds: dict[int, int] = {}

    def watch_core(self, pid: int) -> None:
        """Watch the EngineCore itself: its launcher may outlive it by seconds."""
        self._watch(pid, "EngineCore")

    def watch_workers(self) -> None:
        """Watch the workers that the EngineCore has by now.

        An EngineCore may take long to say that one of them has ended: vLLM's first waits for
        the others, which wait for the dead one. What a worker starts may end: until it has its own
        program, it has the worker's title.
        """
        names: dict[int, str] = {}

        def is_other(pid: int) -> bool:
            names[pid] = title(pid)
            return not is_worker(names[pid])

        for core in tuple(self._pidfds):
            for pid in descendants(core, is_other):
                if is_worker(names[pid]):
                    self._watch(pid, f"worker {names[pid]}")

    def close(self) -> None:
        """Stop watching."""
        for pidfd in self._pidfds.values():
            self._release(pidfd)
        self._pidfds.clear()

    def _watch(self, pid: int, name: str) -> None:
        if pid not in self._pidfds:
            with contextlib.suppress(ProcessLookupError):
                self._pidfds[pid] = os.pidfd_open(pid)
                self._loop.add_reader(self._pidfds[pid], self._process_ended, pid, name)

    def _process_ended(self, pid: int, name: str) -> None:
        self._release(self._pidfds.pop(pid))
        self._ended(f"the {name}, process {pid}, has ended")

    def _release(self, pidfd: int) -> None:
        self._loop.remove_reader(pidfd)
        os.close(pidfd)


def is_worker(name: str) -> bool:
    """Say whether a process of this title is a worker of vLLM (`VLLM::Worker_TP1`).

    What precedes the colons can be set (VLLM_PROCESS_NAME_PREFIX). Other processes below an
    EngineCore, such as compilers and resource trackers, may come and go.
    """
    _, colons, own = name.rpartition("::")
    return bool(colons) and own.startswith("Worker")
