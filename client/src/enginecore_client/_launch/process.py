"""One child process: started, watched, its log's end kept, ended with everything it started."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

LOG_LINES: Final = 20
KILL_SECONDS: Final = 5.0
"""How long a killed process may take to be gone."""

_LOOK_SECONDS: Final = 0.1
_LONGEST_LINE: Final = 2000
_CHUNK_BYTES: Final = 65536
_CHUNKS: Final = 16
"""Most that is read at once: who writes without end must not keep the reader from the rest."""
_CHILD: Final = str(Path(__file__).with_name("child.py"))


class ChildProcess:
    """A process in a session of its own, which ends with the thread that started it.

    `tail` has its last lines, `announcement` the first one that is a JSON object.

    Args:
        command: its command line.
        env: variables beside those of this process.
        forward: whether its output goes to this process's standard error too.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str], *, forward: bool) -> None:
        self.tail: deque[str] = deque(maxlen=LOG_LINES)
        self.announcement: str | None = None
        self._forward = forward
        self._partial = b""
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", _CHILD, str(os.getpid()), *command],
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            bufsize=0,
        )
        assert self._process.stdout is not None
        self._output = self._process.stdout
        os.set_blocking(self._output.fileno(), False)
        self._pidfd = os.pidfd_open(self._process.pid) if hasattr(os, "pidfd_open") else None

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    @property
    def last_words(self) -> str:
        """What it wrote last, for the end of an error's text."""
        return "; it wrote last: " + " | ".join(self.tail) if self.tail else "; it wrote nothing"

    def descriptors(self) -> list[int]:
        """Return what becomes readable when it writes or ends."""
        found = [] if self._output.closed else [self._output.fileno()]
        return found if self._pidfd is None else [*found, self._pidfd]

    def poll(self) -> int | None:
        """Return the exit status (negative: ended by a signal), None while it runs."""
        return self._process.poll()

    def read(self) -> None:
        """Take in what it wrote, at most 1 MiB."""
        for _ in range(_CHUNKS):
            if self._output.closed:
                return
            try:
                chunk = os.read(self._output.fileno(), _CHUNK_BYTES)
            except BlockingIOError:
                return
            if not chunk:
                self._lines(b"\n" if self._partial else b"")
                self._output.close()
                return
            self._lines(chunk)

    def terminate(self) -> None:
        """Ask the process to end; what it started is its own to end."""
        if self.poll() is None:
            self._process.terminate()

    def signal(self, number: int) -> None:
        """Send a signal to the process and everything it started, if anything is left."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def close(self) -> None:
        """Kill what is left of it and close its descriptors; the process has ended."""
        self.signal(signal.SIGKILL)
        self.read()
        if not self._output.closed:
            self._output.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None

    def _lines(self, chunk: bytes) -> None:
        if self._forward:
            _forward(chunk)
        *lines, self._partial = (self._partial + chunk).split(b"\n")
        self._partial = self._partial[-_LONGEST_LINE:]
        texts = [line[-_LONGEST_LINE:].decode(errors="replace") for line in lines]
        if self.announcement is None:
            self.announcement = next((text for text in texts if text.startswith("{")), None)
        self.tail.extend(texts)


def _forward(chunk: bytes) -> None:
    """Write to this process's standard error, which may be replaced (notebooks) or missing."""
    stream = sys.stderr
    with contextlib.suppress(OSError, ValueError):
        if hasattr(stream, "buffer"):
            stream.buffer.write(chunk)
            stream.buffer.flush()
        elif stream is not None:
            stream.write(chunk.decode(errors="replace"))


def ending_of(status: int) -> str:
    """Return how a process ended, as an error's text says it."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = str(-status)
    return f"was ended by {name}"


def end_all(children: Sequence[ChildProcess], stop_seconds: float) -> None:
    """End processes: SIGTERM, and SIGKILL for their groups after `stop_seconds`."""
    for child in children:
        child.terminate()
    if not _gone(children, stop_seconds):
        for child in children:
            child.signal(signal.SIGKILL)
        _gone(children, KILL_SECONDS)
    for child in children:
        child.close()


def _gone(children: Sequence[ChildProcess], seconds: float) -> bool:
    """Wait until all have ended, reading what they write; say whether they have."""
    end = time.monotonic() + seconds
    while True:
        running = [child for child in children if child.poll() is None]
        left = end - time.monotonic()
        if not running or left <= 0:
            return not running
        poller = select.poll()
        for child in running:
            for descriptor in child.descriptors():
                poller.register(descriptor, select.POLLIN)
        poller.poll(round(min(left, _LOOK_SECONDS) * 1000))
        for child in running:
            child.read()
