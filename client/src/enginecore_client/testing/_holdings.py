"""What a process holds: threads, sockets, children, each under an identity that ends with it.

Threads: those of Python, and libzmq's own (a context that was never terminated).
Sockets: descriptors of sockets, event descriptors (each libzmq socket has one), epoll, pidfd.
"""

import os
import threading
from pathlib import Path
from typing import Final, NamedTuple

_DESCRIPTOR_KINDS: Final = ("socket", "[eventfd]", "[eventpoll]", "[pidfd]")
_WATCHDOG: Final = "pytest_timeout"
_HELPER: Final = b"multiprocessing.resource_tracker"


class Holdings(NamedTuple):
    """Threads by their number, sockets by kind, processes by pid; `tasks` are the numbers of all
    threads: libzmq's have their name only a moment after they began."""

    threads: dict[int, str]
    sockets: dict[str, int]
    processes: dict[int, str]
    tasks: frozenset[int] = frozenset()

    def beyond(self, before: "Holdings") -> dict[str, list[str]]:
        """Return what is here and was not in `before`, by kind; empty kinds are left out."""
        extra = {
            "threads": [f"{n} ({t})" for t, n in self.threads.items() if t not in before.tasks],
            "sockets": [
                f"{count - before.sockets.get(kind, 0)} of {kind}"
                for kind, count in self.sockets.items()
                if count > before.sockets.get(kind, 0)
            ],
            "processes": [
                f"{pid}: {n}" for pid, n in self.processes.items() if pid not in before.processes
            ],
        }
        return {kind: found for kind, found in extra.items() if found}


def own_holdings() -> Holdings:
    """Return what this process holds now."""
    return Holdings(_threads(), _sockets(), _children(), _tasks())


def nothing_beyond(before: Holdings) -> bool:
    """Return True.

    Raises:
        AssertionError: this process holds what was not in `before`; the text names it.
    """
    found = own_holdings().beyond(before)
    assert not found, found
    return True


def processes_with(variable: bytes) -> dict[int, str]:
    """Return the command of every other process with this in its environment (`NAME=value`)."""
    found: dict[int, str] = {}
    for process in Path("/proc").iterdir():
        if not process.name.isdigit() or int(process.name) == os.getpid():
            continue
        if variable in read(process / "environ").split(b"\0"):
            _note(found, int(process.name))
    return found


def read(path: Path) -> bytes:
    """Return a file's content, nothing if it is gone or somebody else's."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""


def _threads() -> dict[int, str]:
    found = {
        thread.native_id: thread.name
        for thread in threading.enumerate()
        if thread.native_id is not None and not thread.name.startswith(_WATCHDOG)
    }
    for task in Path("/proc/self/task").iterdir():
        name = read(task / "comm").decode().strip()
        if name.startswith("ZMQ"):
            found[int(task.name)] = name
    return found


def _tasks() -> frozenset[int]:
    return frozenset(int(task) for task in os.listdir("/proc/self/task"))


def _sockets() -> dict[str, int]:
    counts: dict[str, int] = {}
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{descriptor}")
        except FileNotFoundError:
            continue
        for kind in _DESCRIPTOR_KINDS:
            if target.startswith(kind) or target.endswith(kind):
                counts[kind] = counts.get(kind, 0) + 1
    return counts


def _children() -> dict[int, str]:
    found: dict[int, str] = {}
    for task in Path("/proc/self/task").iterdir():
        for pid in read(task / "children").split():
            _note(found, int(pid))
    return found


def _note(found: dict[int, str], pid: int) -> None:
    command = read(Path(f"/proc/{pid}/cmdline"))
    if _HELPER not in command:
        found[pid] = (
            command.replace(b"\0", b" ").decode(errors="replace").strip() or "ended, unreaped"
        )
