"""Deadlines of an engine: of a step while it works, of progress while it starts."""

from enum import Enum
from typing import Final

_CPU_PROGRESS_SECONDS: Final = 0.5


class Verdict(Enum):
    """What is to be done about the engine."""

    FINE = "fine"
    PROBE = "probe"
    DEAD = "dead"


class StepWatch:
    """Judges an engine by what is heard from it.

    An engine with work that shows no output for `deadline_seconds` is dead. Halfway there, and
    now and then when it is idle, it is asked whether its scheduler is paused on purpose: that
    counts as output; no answer counts as work.

    Args:
        deadline_seconds: the step deadline.
        now: monotonic seconds.
    """

    def __init__(self, deadline_seconds: float, now: float) -> None:
        self._deadline = deadline_seconds
        self._heard = now
        self._checked = now
        self._probed = float("-inf")
        self._unanswered = False
        self._had_work = False

    def heard(self, now: float) -> None:
        """Note when the last output came; one that is known already changes nothing."""
        self._heard = max(self._heard, now)

    def answered(self, paused: bool, now: float) -> None:
        """Note the answer to the probe."""
        self._unanswered = False
        if paused or not self._had_work:
            self._heard = now

    def check(self, has_work: bool, now: float) -> Verdict:
        """Judge; call this several times per deadline.

        A long time since the previous check means that this process did not run itself, and
        nothing is held against the engine.
        """
        if now - self._checked > self._deadline / 2:
            self._heard = now
        self._checked = now
        if has_work and not self._had_work and not self._unanswered:
            self._heard = now
        self._had_work = has_work
        silent = now - self._heard
        if silent >= self._deadline and (has_work or self._unanswered):
            return Verdict.DEAD
        half = self._deadline / 2
        if silent >= half and now - self._probed >= half and not self._unanswered:
            self._probed = now
            self._unanswered = True
            if not has_work:
                self._heard = now
            return Verdict.PROBE
        return Verdict.FINE


class StartWatch:
    """Judges an engine that starts: it may take any time, as long as it shows progress.

    Args:
        deadline_seconds: time without progress after which it is dead.
        now: monotonic seconds.
    """

    def __init__(self, deadline_seconds: float, now: float) -> None:
        self._deadline = deadline_seconds
        self._progress = now
        self._cpu = 0.0

    def progress(self, now: float) -> None:
        """Note a step of the handshake or a line of the log."""
        self._progress = now

    def stuck(self, cpu_seconds: float, now: float) -> bool:
        """Say whether the deadline has passed; `cpu_seconds` is what the tree has used."""
        if abs(cpu_seconds - self._cpu) >= _CPU_PROGRESS_SECONDS:
            self._cpu = cpu_seconds
            self._progress = now
        return now - self._progress >= self._deadline
