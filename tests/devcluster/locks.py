"""File locks that the kernel releases when their holder ends, however it ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from io import BufferedWriter
from pathlib import Path

Progress = Callable[[str], None]


@contextlib.contextmanager
def file_lock(path: Path, what: str, progress: Progress) -> Iterator[None]:
    """Holds an exclusive lock on ``path``; says so when it has to wait.

    The holder may remove the file: whoever waited for it then notices and
    locks the new one.
    """
    while True:
        with _opened(path) as stream:
            if not _try_lock(stream):
                progress(f"waiting: another process holds the lock of {what}")
                fcntl.flock(stream, fcntl.LOCK_EX)
            if _is_current(stream, path):
                yield
                return


@contextlib.contextmanager
def free_lock(path: Path) -> Iterator[bool]:
    """Tries the lock on ``path`` without waiting; yields whether it is held now."""
    with _opened(path) as stream:
        yield _try_lock(stream) and _is_current(stream, path)


def _opened(path: Path) -> BufferedWriter:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("ab")


def _try_lock(stream: BufferedWriter) -> bool:
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_current(stream: BufferedWriter, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(stream.fileno()), path.stat())
    except FileNotFoundError:
        return False
