"""The clients: each a program of its own, and another in its place once it was killed."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self

from chaos.client import KINDS
from chaos.programs import environment
from support.eventually import eventually

END_SECONDS: Final = 60.0
"""How long a client may take to end what it has begun, when nothing goes wrong any more."""


class Crowd:
    """Clients of one cluster; a context manager.

    Args:
        directory: where their journals go.
        addresses: the file that they follow.
        seed: what they draw their requests from.
        size: how many there are at a time.
        callers: PATIENT, or any other word for callers of every kind.

    Attributes:
        killed: the names of those that were killed.
    """

    def __init__(
        self, directory: Path, addresses: Path, seed: int, size: int, callers: str = "any"
    ) -> None:
        self.killed: set[str] = set()
        self._directory = directory
        self._addresses = addresses
        self._seed = seed
        self._size = size
        self._callers = callers
        self._started = 0
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        for _ in range(self._size):
            self._start()
        return self

    def __exit__(self, *exc: object) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()

    def journals(self) -> dict[str, Path]:
        """Return every client's journal, by name."""
        return {file.stem: file for file in self._directory.glob("client-*.jsonl")}

    def kill(self, number: int) -> None:
        """Kill a client; another one takes its place."""
        name = list(self._running)[number % len(self._running)]
        process = self._running.pop(name)
        self.killed.add(name)
        process.kill()
        process.wait()
        self._start()

    def keep(self) -> None:
        """See that all are there.

        Raises:
            AssertionError: one has ended by itself.
        """
        for name, process in self._running.items():
            if process.poll() is not None:
                raise AssertionError(self._ending(name))

    def began(self) -> bool:
        """Say whether each has had an answer."""
        return all(
            file.exists() and b'"Ended"' in file.read_bytes()
            for file in (self._journal(name) for name in self._running)
        )

    def stop(self, keep: Callable[[], None]) -> None:
        """Have all end what they have begun, and wait for that; `keep` is called all the while.

        Raises:
            AssertionError: one does not, or not in order.
        """

        def ended() -> bool:
            keep()
            return all(process.poll() is not None for process in self._running.values())

        def began() -> bool:
            keep()
            return self.began()

        eventually(began, "every client has had an answer", deadline=END_SECONDS)
        for process in self._running.values():
            process.terminate()
        eventually(ended, "every client ends what it has begun", deadline=END_SECONDS)
        for name, process in self._running.items():
            assert process.returncode == 0, self._ending(name)

    def _journal(self, name: str) -> Path:
        return self._directory / f"{name}.jsonl"

    def _log(self, name: str) -> Path:
        return self._directory / f"{name}.log"

    def _ending(self, name: str) -> str:
        status = self._running[name].returncode
        return f"{name} ended with status {status}: {self._log(name).read_text()[-2000:]}"

    def _start(self) -> None:
        number = self._started
        self._started += 1
        name, kind = f"client-{number}", KINDS[number % len(KINDS)]
        with self._log(name).open("w") as log:
            self._running[name] = subprocess.Popen(
                [sys.executable, "-m", "chaos.client", name, kind, str(self._addresses),
                 str(self._journal(name)), f"{self._seed}/{number}", self._callers],
                stdout=log, stderr=subprocess.STDOUT, env=environment(),
            )  # fmt: skip
