"""Starts, recognises and ends processes without ever hitting a stranger.

A pid alone names nobody: the kernel hands it out again.  Here a process is
known by its pid and its start time, and every process of a run carries the
run's directory in its environment, so that one which was started in the
instant before its launcher was killed is still found.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from devcluster.errors import DevclusterError

RUN_VARIABLE = "ENGINECORE_DEVCLUSTER_RUN"
PROC = Path("/proc")
_POLL_SECONDS = 0.05
_LOG_TAIL_BYTES = 1500
_STATE_FIELD = 0
_START_FIELD = 19


@dataclass(frozen=True)
class ProcessIdentity:
    """One process for all time of one boot.

    Attributes:
        pid: process id.
        start_ticks: start time in clock ticks since boot.
    """

    pid: int
    start_ticks: int


@dataclass(frozen=True)
class ProcessStat:
    """The fields of ``/proc/<pid>/stat`` that matter here."""

    state: str
    start_ticks: int

    @property
    def ended(self) -> bool:
        return self.state in "ZX"


def parse_stat(text: str) -> ProcessStat:
    """Parses ``/proc/<pid>/stat``; the command name may hold spaces and ')'."""
    fields = text.rpartition(")")[2].split()
    return ProcessStat(state=fields[_STATE_FIELD], start_ticks=int(fields[_START_FIELD]))


def read_stat(pid: int, proc: Path = PROC) -> ProcessStat | None:
    """Returns the process's stat, or None where no such process exists."""
    try:
        return parse_stat((proc / str(pid) / "stat").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return None


def identify(pid: int, proc: Path = PROC) -> ProcessIdentity | None:
    """Returns the identity of a running process, None where it ended."""
    stat = read_stat(pid, proc)
    return None if stat is None or stat.ended else ProcessIdentity(pid, stat.start_ticks)


def is_alive(identity: ProcessIdentity, proc: Path = PROC) -> bool:
    """True while exactly this process runs; a zombie counts as ended."""
    return identify(identity.pid, proc) == identity


def own_identity() -> ProcessIdentity:
    """Returns the identity of the calling process."""
    identity = identify(os.getpid())
    assert identity is not None, "the calling process always runs"
    return identity


def boot_id() -> str:
    """Returns the id of this boot; start times of other boots mean nothing."""
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def spawn(
    argv: Sequence[str | Path], *, log: Path, run: Path, environ: Mapping[str, str] = os.environ
) -> ProcessIdentity:
    """Starts a process in a session of its own.

    Args:
        argv: program path and arguments.
        log: file that takes its standard output and error.
        run: directory of the run it belongs to.
        environ: its environment, to which the run's mark is added.

    Raises:
        DevclusterError: the program cannot be executed.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    words = [str(word) for word in argv]
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    try:
        pid = os.posix_spawn(
            words[0],
            words,
            {**environ, RUN_VARIABLE: str(run)},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(log), append, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
            # Python ignores SIGPIPE and children inherit that.
            setsigdef=[signal.SIGPIPE],
        )
    except OSError as error:
        raise DevclusterError(f"cannot start {words[0]}: {error.strerror}") from error
    stat = read_stat(pid)
    # Unreaped children keep their entry in /proc, ended or not.
    assert stat is not None, "a child stays visible until it is reaped"
    return ProcessIdentity(pid, stat.start_ticks)


def kill(identities: Iterable[ProcessIdentity]) -> None:
    """Ends processes at once and returns when every one of them has ended.

    There is nothing to save: all they wrote goes with the run.  A process that
    shares a pid with an identity but not its start time is left alone.
    """
    with contextlib.ExitStack() as stack:
        handles = _open_handles(identities, stack)
        for handle in handles:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        for handle in handles:
            select.select([handle], [], [])
            # Children of the caller must be reaped, others are not its own.
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PIDFD, handle, os.WEXITED | os.WNOHANG)


def _open_handles(identities: Iterable[ProcessIdentity], stack: contextlib.ExitStack) -> list[int]:
    handles = []
    for identity in identities:
        try:
            handle = os.pidfd_open(identity.pid)
        except ProcessLookupError:
            continue
        stack.callback(os.close, handle)
        # Checked after opening: from here on the handle cannot change hands.
        stat = read_stat(identity.pid)
        if stat is not None and stat.start_ticks == identity.start_ticks:
            handles.append(handle)
    return handles


def marked_processes(run: Path, proc: Path = PROC) -> list[ProcessIdentity]:
    """Finds the running processes that carry the mark of a run, but the caller."""
    mark = f"{RUN_VARIABLE}={run}".encode()
    found = []
    for entry in proc.iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environ = (entry / "environ").read_bytes()
        except OSError:
            continue
        if mark in environ.split(b"\0"):
            identity = identify(int(entry.name), proc)
            if identity is not None:
                found.append(identity)
    return found


def wait_until(
    condition: Callable[[], bool],
    *,
    what: str,
    seconds: float,
    needs: Mapping[Path, ProcessIdentity],
) -> None:
    """Polls a condition until it holds.

    Args:
        condition: the check, without side effects.
        what: the condition in words, for the error.
        seconds: how long it may take.
        needs: log file → process without which it can never hold.

    Raises:
        DevclusterError: the time is over, or a needed process ended; the
            message shows the end of the log.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        for log, identity in needs.items():
            if not is_alive(identity):
                raise DevclusterError(f"{log.stem} ended while waiting: {what}\n{log_tail(log)}")
        if time.monotonic() > deadline:
            logs = "\n".join(log_tail(log) for log in needs)
            raise DevclusterError(f"not within {seconds:.0f} s: {what}\n{logs}")
        time.sleep(_POLL_SECONDS)


def log_tail(log: Path) -> str:
    """Returns the end of a log file, headed by its path."""
    try:
        text = log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip()
    except FileNotFoundError:
        text = "(no output)"
    return f"--- {log}\n{text}"
