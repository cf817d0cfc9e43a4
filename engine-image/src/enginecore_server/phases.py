"""The phases of an engine process: which may follow which, when, and why."""

from collections.abc import Callable
from typing import Final

from enginecore_wire.contract import PhaseRecord
from enginecore_wire.control import Phase

_NEXT: Final = {
    Phase.STARTING: {Phase.HANDSHAKING, Phase.STOPPED, Phase.FAILED},
    Phase.HANDSHAKING: {Phase.LOADING, Phase.STOPPED, Phase.FAILED},
    Phase.LOADING: {Phase.READY, Phase.STOPPED, Phase.FAILED},
    Phase.READY: {Phase.DRAINING, Phase.FAILED},
    Phase.DRAINING: {Phase.STOPPED, Phase.FAILED},
    Phase.STOPPED: set[Phase](),
    Phase.FAILED: set[Phase](),
}

STARTING_UP: Final = frozenset({Phase.STARTING, Phase.HANDSHAKING, Phase.LOADING})
ENDED: Final = frozenset({Phase.STOPPED, Phase.FAILED})


class PhaseLog:
    """The present phase and the way there.

    Args:
        wall: seconds since the epoch.
        monotonic: seconds of a clock that never jumps.
    """

    def __init__(self, wall: Callable[[], float], monotonic: Callable[[], float]) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._entered = monotonic()
        self._spent = dict.fromkeys(Phase, 0.0)
        self.phase = Phase.STARTING
        self.reason = ""
        self.message = ""
        self.since = wall()
        self.records = [PhaseRecord(Phase.STARTING, self.since)]

    def enter(self, phase: Phase, reason: str = "", message: str = "") -> bool:
        """Go on to `phase`; return False if it may not follow the present one.

        Args:
            phase: the next phase.
            reason: one CamelCase word for programs.
            message: a sentence for people.
        """
        if phase not in _NEXT[self.phase]:
            return False
        now = self._monotonic()
        self._spent[self.phase] += now - self._entered
        self._entered = now
        self.phase, self.reason, self.message = phase, reason, message
        self.since = self._wall()
        self.records.append(PhaseRecord(phase, self.since, reason))
        return True

    def step(self, reason: str, message: str) -> None:
        """Note what the engine does now; the phase goes on."""
        self.reason, self.message = reason, message
        self.records.append(PhaseRecord(self.phase, self._wall(), reason))

    @property
    def seconds(self) -> float:
        """Time spent in the present phase."""
        return self._monotonic() - self._entered

    @property
    def spent(self) -> dict[Phase, float]:
        """Seconds spent in each phase so far."""
        return self._spent | {self.phase: self._spent[self.phase] + self.seconds}

    @property
    def accepts_clients(self) -> bool:
        """Whether sessions get READY: the engine works, if perhaps not for new requests."""
        return self.phase in (Phase.READY, Phase.DRAINING)
