"""The machine's one place for a node: who has it, and how to wait for it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from devcluster import state
from devcluster.errors import DevclusterError
from devcluster.locations import NODE_ROOT, RunDirectory
from devcluster.locks import Progress, file_lock, free_lock
from devcluster.processes import boot_id
from devcluster.state import RunRecord, Verdict

# Bridge, packet filter and cgroups are the machine's, whatever the user's state directory.
CLAIM = NODE_ROOT / ".claim"
_RETRY_SECONDS = 0.5

EndRun = Callable[[RunDirectory, RunRecord | None], None]


def claim(
    run: RunDirectory, *, wait_seconds: float, end: EndRun, progress: Progress, path: Path = CLAIM
) -> None:
    """Takes the machine's node for a run whose record is saved.

    A dead run that still has it is ended first; a live one is waited for.

    Args:
        run: the run that wants it.
        wait_seconds: how long to wait for a live run.
        end: ends another run.
        progress: takes one line of text per step.
        path: the claim file.

    Raises:
        DevclusterError: a live run kept it all the time.
    """
    deadline = time.monotonic() + wait_seconds
    told = False
    while True:
        with file_lock(path.with_suffix(".lock"), "this machine's node", progress):
            holder = _holder(path)
            if holder is None or holder == run or _ended(holder, end, progress):
                path.write_text(f"{run.path}\n")
                return
        remedy = f"devcluster down --name {holder.name}"
        if time.monotonic() > deadline:
            raise DevclusterError(
                f"run {holder.name!r} ({holder.path}) has this machine's node: {remedy}"
            )
        if not told:
            progress(f"waiting: run {holder.name!r} has this machine's node; to end it: {remedy}")
            told = True
        time.sleep(_RETRY_SECONDS)


def release(run: RunDirectory, progress: Progress, path: Path = CLAIM) -> None:
    """Gives the machine's node back, where the run has it."""
    if not has(run, path):
        return
    with file_lock(path.with_suffix(".lock"), "this machine's node", progress):
        if _holder(path) == run:
            path.unlink()
            path.with_suffix(".lock").unlink()
    with contextlib.suppress(OSError):
        path.parent.rmdir()


def has(run: RunDirectory, path: Path = CLAIM) -> bool:
    """True while the run has the machine's node."""
    return _holder(path) == run


def _holder(path: Path) -> RunDirectory | None:
    try:
        return RunDirectory(Path(path.read_text().strip()))
    except FileNotFoundError:
        return None


def _ended(holder: RunDirectory, end: EndRun, progress: Progress) -> bool:
    with free_lock(holder.lock) as ours:
        # Somebody who holds the run's lock is just bringing it up or down.
        if not ours:
            return False
        record = state.load(holder)
        if record is not None and state.judge(record, boot_id()) is not Verdict.ABANDONED:
            return False
        progress(f"reclaiming what run {holder.name} left behind")
        end(holder, record)
    return True
