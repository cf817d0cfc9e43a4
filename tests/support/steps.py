"""Runs slow commands so that whoever waits sees where they are."""

import shlex
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

Progress = Callable[[str], None]

_REPORT_SECONDS = 10.0
_TAIL_BYTES = 4096
_LINE_WIDTH = 90


class StepError(Exception):
    """A step failed; the message holds the command, its end and its last output."""


def run_step(
    title: str,
    command: Sequence[str],
    log: Path,
    progress: Progress,
    env: Mapping[str, str] | None = None,
) -> None:
    """Run a command with its output in a file, reporting its last line every 10 seconds.

    Args:
        title: what the step does, for the reports.
        command: program and arguments.
        log: where its output goes; appended to.
        progress: takes one line of text per report.
        env: its environment; None for this process's own.

    Raises:
        StepError: the program is not installed, or it ended with another code than 0.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with log.open("ab") as output:
        try:
            process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=None if env is None else dict(env),
            )
        except FileNotFoundError:
            raise StepError(f"{title}: {command[0]} is not installed") from None
        try:
            code = _wait(process, title, log, started, progress)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    if code != 0:
        raise StepError(
            f"{title} failed with exit code {code}\n$ {shlex.join(command)}\n"
            f"{_tail(log)}\n(all of it: {log})"
        )


def seconds_since(started: float) -> str:
    """Return the time since `started` (monotonic seconds), as text such as 12 s or 1 min 5 s."""
    elapsed = round(time.monotonic() - started)
    return f"{elapsed} s" if elapsed < 60 else f"{elapsed // 60} min {elapsed % 60} s"


def _wait(
    process: "subprocess.Popen[bytes]", title: str, log: Path, started: float, progress: Progress
) -> int:
    while True:
        try:
            return process.wait(timeout=_REPORT_SECONDS)
        except subprocess.TimeoutExpired:
            last = (_tail(log).splitlines() or [""])[-1].strip()
            progress(f"{title}: {seconds_since(started)} so far · {last[:_LINE_WIDTH]}")


def _tail(log: Path) -> str:
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - _TAIL_BYTES))
        return stream.read().decode(errors="replace").strip()
