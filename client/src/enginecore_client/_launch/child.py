"""Becomes the command in its arguments, and ends with the process that started it.

Run as a script: `python -I -S _child.py PARENT COMMAND…`. It exists because code between fork
and exec of a process with threads may hang, and because without it engines would outlive a
client that was killed.
"""

import ctypes
import os
import signal
import sys
from typing import Final

PR_SET_PDEATHSIG: Final = 1
NOT_FOUND: Final = 127


def main(parent: int, command: list[str]) -> int:
    """Run `command` in this process's place; return the exit status if that is not possible."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:  # it ended before it could be watched
        return 1
    try:
        os.execvp(command[0], command)  # noqa: S606 - there is no shell to use
    except OSError as error:
        print(f"cannot run {command[0]}: {error.strerror}", file=sys.stderr)
        return NOT_FOUND


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
