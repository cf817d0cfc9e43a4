"""Headings and times of the demo's steps."""

import contextlib
import time
from collections.abc import Iterator


class Steps:
    """Counts and times steps; `title` is the one that runs or ran last."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._count = 0
        self.title = ""

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Print a heading, and the time taken at the end."""
        self._count += 1
        self.title = title
        started = time.monotonic()
        print(f"\n== {self._count}. {title} (after {self.elapsed()})", flush=True)
        yield
        print(f"   done in {seconds_since(started)}", flush=True)

    def say(self, line: str) -> None:
        """Print one line of a step's progress, with the time since the beginning."""
        print(f"   {self.elapsed():>12}  {line}", flush=True)

    def elapsed(self) -> str:
        """Return the time since the beginning."""
        return seconds_since(self._started)


def seconds_since(started: float) -> str:
    """Return the time since `started` (monotonic seconds), as text such as 12 s or 1 min 5 s."""
    elapsed = round(time.monotonic() - started)
    return f"{elapsed} s" if elapsed < 60 else f"{elapsed // 60} min {elapsed % 60} s"
