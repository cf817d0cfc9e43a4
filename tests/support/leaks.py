"""What a process holds now, and what of it a test left behind.

Threads: those of Python, and libzmq's own (a context that was never terminated).
Sockets: descriptors of sockets, event descriptors (each libzmq socket has one), epoll, pidfd.
Processes: children, and everything that inherited this session's mark in its environment.
"""

import os
import threading
import time
from pathlib import Path
from typing import NamedTuple

SESSION_MARK = f"ENGINECORE_TEST_SESSION={os.getpid()}-{time.time_ns()}"
SETTLE_SECONDS = 3.0

_DESCRIPTOR_KINDS = ("socket", "[eventfd]", "[eventpoll]", "[pidfd]")
_WATCHDOG = "pytest_timeout"
_HELPER = b"multiprocessing.resource_tracker"


class Holdings(NamedTuple):
    """Threads, sockets and processes, each under an identity that ends with it."""

    threads: dict[int, str]
    sockets: dict[str, int]
    processes: dict[int, str]

    def beyond(self, before: "Holdings") -> dict[str, list[str]]:
        """Return what is here and was not in `before`, by kind; empty kinds are left out."""
        extra = {
            "threads": [f"{n} ({t})" for t, n in self.threads.items() if t not in before.threads],
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


def mark_session() -> None:
    """Put the mark into the environment that child processes inherit."""
    name, _, value = SESSION_MARK.partition("=")
    os.environ[name] = value


def holdings(descendants: bool) -> Holdings:
    """Return what this process holds; with `descendants` also orphans that carry the mark."""
    processes = _children()
    if descendants:
        processes |= _marked()
    return Holdings(_threads(), _sockets(), processes)


def settled_leaks(
    before: Holdings, ignored: frozenset[str], descendants: bool
) -> dict[str, list[str]]:
    """Return what stays beyond `before` once endings in progress had SETTLE_SECONDS."""
    end = time.monotonic() + SETTLE_SECONDS
    while True:
        found = holdings(descendants).beyond(before)
        leaks = {kind: names for kind, names in found.items() if kind not in ignored}
        if not leaks or time.monotonic() >= end:
            return leaks
        time.sleep(0.01)


def _threads() -> dict[int, str]:
    found = {
        thread.native_id: thread.name
        for thread in threading.enumerate()
        if thread.native_id is not None and not thread.name.startswith(_WATCHDOG)
    }
    for task in Path("/proc/self/task").iterdir():
        name = _read(task / "comm").decode().strip()
        if name.startswith("ZMQ"):
            found[int(task.name)] = name
    return found


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
        for pid in _read(task / "children").split():
            _note(found, int(pid))
    return found


def _marked() -> dict[int, str]:
    found: dict[int, str] = {}
    mark = SESSION_MARK.encode()
    for process in Path("/proc").iterdir():
        if not process.name.isdigit() or int(process.name) == os.getpid():
            continue
        if mark in _read(process / "environ").split(b"\0"):
            _note(found, int(process.name))
    return found


def _note(found: dict[int, str], pid: int) -> None:
    command = _read(Path(f"/proc/{pid}/cmdline"))
    if _HELPER not in command:
        found[pid] = (
            command.replace(b"\0", b" ").decode(errors="replace").strip() or "ended, unreaped"
        )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""
