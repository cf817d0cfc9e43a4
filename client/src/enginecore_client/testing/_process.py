"""A child process whose output is kept and that leaves nothing behind."""

import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress

STOP_SECONDS = 20.0


class Process:
    """A child process in a session of its own; a context manager that ends it.

    Args:
        command: what to run; `environment` is added to this process's.
        name: of the thread that reads the output.
    """

    def __init__(
        self, command: Sequence[str], name: str, environment: Mapping[str, str] | None = None
    ) -> None:
        self.log: list[str] = []
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=os.environ | (environment or {}),
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, name=name)
        self._reader.start()

    def check(self) -> None:
        """Fail with the end of the log if the process has ended."""
        assert self.process.poll() is None, self.tail()

    def tail(self) -> str:
        """Return the end of the log."""
        return "\n".join(self.log[-60:])

    def close(self) -> None:
        """End the process in order, and with force whatever of its session is left."""
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self._reader.join(STOP_SECONDS)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.log.append(line.rstrip("\n"))
