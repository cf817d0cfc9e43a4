"""The engine's process tree: started, its log read, reaped, ended."""

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from enginecore_server.engine_log import EngineLog
from enginecore_server.processes import descendants, end_with_parent

_KILL_SECONDS: Final = 2.0
_POLL_SECONDS: Final = 0.02
_CHUNK_BYTES: Final = 65536
_PIPE_CHUNKS: Final = 16
"""A pipe's largest default size in chunks; what comes later is another process's."""

_log = logging.getLogger(__name__)


class ChildStartError(Exception):
    """The engine's command could not be started; the text names it."""


class EngineChild:
    """The launcher and whatever it starts, in a process group of their own.

    This process must be PID 1 or a subreaper: it reaps every child, so that no zombie stays
    and the launcher's orphans can be found and ended.

    Args:
        on_exit: called once with the launcher's exit status (negative: killed by a signal).
        on_log: called with every chunk of output, after it went to this process's stdout.
    """

    def __init__(self, on_exit: Callable[[int], None], on_log: Callable[[bytes], None]) -> None:
        self._on_exit = on_exit
        self._on_log = on_log
        self._loop = asyncio.get_running_loop()
        self._process: subprocess.Popen[bytes] | None = None
        self.log = EngineLog()
        self.exit_status: int | None = None

    @property
    def pid(self) -> int | None:
        """The launcher's pid while it runs."""
        return self._process.pid if self._process and self.exit_status is None else None

    def start(self, command: Sequence[str], environment: dict[str, str]) -> None:
        """Run `command`.

        Raises:
            ChildStartError: there is no such program, or it may not be run.
        """
        self._loop.add_signal_handler(signal.SIGCHLD, self._reap)
        try:
            self._process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=end_with_parent,
                bufsize=0,
            )
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise ChildStartError(f"cannot run {command[0]}: {reason}") from error
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._loop.add_reader(self._process.stdout.fileno(), self._read_log)
        _log.info("engine started: pid %d: %s", self._process.pid, " ".join(command))

    async def stop(self, grace_seconds: float) -> None:
        """End the whole tree: SIGTERM, and SIGKILL for what is left after `grace_seconds`."""
        self._signal_group(signal.SIGTERM)
        if not await self._gone(grace_seconds):
            for pid in descendants(os.getpid()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await self._gone(_KILL_SECONDS)
        self._close()

    async def _gone(self, seconds: float) -> bool:
        """Wait until no process of the tree is left; return False if some are after all."""
        for _ in range(max(1, round(seconds / _POLL_SECONDS))):
            if not self._alive():
                return True
            await asyncio.sleep(_POLL_SECONDS)
        return False

    def _alive(self) -> bool:
        self._reap()
        return bool(descendants(os.getpid()))

    def _signal_group(self, number: int) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            code = os.waitstatus_to_exitcode(status)
            if self._process is not None and pid == self._process.pid:
                self._process.returncode = self.exit_status = code
                for _ in range(_PIPE_CHUNKS):
                    if not self._read_log():
                        break
                self._on_exit(code)

    def _read_log(self) -> bool:
        """Take one chunk of output; return False if there is none now or ever."""
        assert self._process is not None
        assert self._process.stdout is not None
        if self._process.stdout.closed:
            return False
        try:
            chunk = os.read(self._process.stdout.fileno(), _CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not chunk:
            self._loop.remove_reader(self._process.stdout.fileno())
            self.log.end()
            return False
        with contextlib.suppress(OSError):
            sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()
        self.log.feed(chunk)
        self._on_log(chunk)
        return True

    def _close(self) -> None:
        self._loop.remove_signal_handler(signal.SIGCHLD)
        if self._process is not None and self._process.stdout is not None:
            self._loop.remove_reader(self._process.stdout.fileno())
            self._process.stdout.close()


def write_termination_message(text: bytes, path: Path = Path("/dev/termination-log")) -> None:
    """Leave `text` where the kubelet picks it up, if this is a pod."""
    if path.exists():
        with contextlib.suppress(OSError):
            path.write_bytes(text)
