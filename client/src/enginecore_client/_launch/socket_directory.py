"""A directory of its own for the ipc sockets of one launch."""

import os
import shutil
import tempfile
import weakref

from enginecore_client.errors import AddressError


class SocketDirectory:
    """Exists until `remove`, at the latest until nobody has it any more.

    Raises:
        AddressError: no directory for temporary files can be written.
    """

    def __init__(self) -> None:
        try:
            self.path = tempfile.mkdtemp(prefix=f"enginecore-launch-{os.getpid()}-")
        except OSError as error:
            raise AddressError(
                f"no directory for sockets can be made: {error}; set TMPDIR to one that can be "
                "written"
            ) from error
        self.remove = weakref.finalize(self, _remove, self.path, os.getpid())


def _remove(directory: str, process: int) -> None:
    """Remove the directory, unless this is a fork of the process that made it."""
    if os.getpid() == process:
        shutil.rmtree(directory, ignore_errors=True)
