"""Facts about processes from /proc, and the two prctl calls a supervisor needs. Linux only."""

import ctypes
import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_AFTER_COMM_PPID: Final = 1
_AFTER_COMM_TIMES: Final = slice(11, 15)


def become_subreaper() -> None:
    """Make orphaned descendants children of this process, as they are of PID 1.

    Raises:
        OSError: the kernel refused.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent() -> None:
    """Have the kernel send this process SIGTERM when its parent dies (called in a child).

    Raises:
        OSError: the kernel refused.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def descendants(root: int, further: Callable[[int], bool] = lambda _: True) -> list[int]:
    """Return the pids of all descendants of `root`, zombies too, parents before children.

    Args:
        root: where to begin.
        further: says of each whether those below it are looked for.
    """
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            fields = _stat(int(entry.name))
            if fields:
                children.setdefault(int(fields[_AFTER_COMM_PPID]), []).append(int(entry.name))
    found: list[int] = []
    frontier = [root]
    while frontier:
        frontier = [child for pid in frontier for child in children.get(pid, ())]
        found.extend(frontier)
        frontier = [pid for pid in frontier if further(pid)]
    return found


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return the CPU time that `pids` and their waited-for children have used."""
    ticks = 0
    for pid in pids:
        fields = _stat(pid)
        if fields:
            ticks += sum(int(value) for value in fields[_AFTER_COMM_TIMES])
    return ticks / _TICKS


def title(pid: int) -> str:
    """Return what a process calls itself, the first of its arguments, or "" if it is gone."""
    try:
        text = Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""
    return text.partition("\0")[0].strip()


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the command's name, or [] if it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def _prctl(option: int, value: int) -> None:
    if _LIBC.prctl(option, value, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
