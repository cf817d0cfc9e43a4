"""A directory of its own for the ipc sockets of one launch."""

import fcntl
import os
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Final

from enginecore_client.errors import AddressError

PREFIX: Final = "enginecore-launch-"
LOCK: Final = "lock"


class SocketDirectory:
    """Exists until `remove`, at the latest until nobody has it any more.

    A process that is killed leaves its directory behind; whoever makes the next one removes it.

    Raises:
        AddressError: no directory for temporary files can be written.
    """

    def __init__(self) -> None:
        try:
            _remove_abandoned(Path(tempfile.gettempdir()))
            self.path = tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-")
            lock = _lock(Path(self.path))
        except OSError as error:
            raise AddressError(
                f"no directory for sockets can be made: {error}; set TMPDIR to one that can be "
                "written"
            ) from error
        self.remove = weakref.finalize(self, _remove, self.path, lock, os.getpid())


def _lock(directory: Path) -> int:
    """Hold a lock in a directory for as long as this process lives; return its descriptor.

    The file gets its name when it is locked: nobody finds it otherwise.
    """
    unnamed = directory / f"{LOCK}.new"
    descriptor = os.open(unnamed, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    unnamed.rename(directory / LOCK)
    return descriptor


def _remove_abandoned(parent: Path) -> None:
    """Remove the directories whose processes are gone.

    It is the lock that tells: a process id may belong to another container's processes.
    """
    for directory in parent.glob(f"{PREFIX}*"):
        try:
            descriptor = os.open(directory / LOCK, os.O_RDWR | os.O_CLOEXEC)
        except OSError:  # somebody else's, or just being made
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(directory, ignore_errors=True)
        except BlockingIOError:
            continue
        finally:
            os.close(descriptor)


def _remove(directory: str, lock: int, process: int) -> None:
    """Remove the directory, unless this is a fork of the process that made it."""
    os.close(lock)
    if os.getpid() == process:
        shutil.rmtree(directory, ignore_errors=True)
