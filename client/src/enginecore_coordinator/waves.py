"""The waves of engines that run in lockstep: when they are woken, and what clients are told.

All ranks step together, or all pause. A wave is one such run; it is counted when it ends. Every
decision here errs on the side of waking: START_DP_WAVE with a wave that is over is ignored by
engines, and one that comes twice changes nothing, but a request whose wake-up is lost waits for
ever. For the same reason nobody is excluded from a wake-up, whatever the message that caused it
says: the engine that was given the request may have lost it again. No I/O, no clock.
"""

from typing import NamedTuple

from enginecore_wire.coordination import LAST_WAVE


class Wake(NamedTuple):
    """START_DP_WAVE for all engines: run, in this wave."""

    wave: int
    exclude: int | None = None


class Effect(NamedTuple):
    """What follows from a message: whom to wake, and whether clients have to be told."""

    wake: Wake | None = None
    publish: bool = False


NOTHING = Effect()


class WaveBook:
    """The current wave, and whether engines run, as far as rank 0 has said so.

    Args:
        lockstep: whether the engines step together at all; independent ones have no waves.
    """

    def __init__(self, *, lockstep: bool) -> None:
        self.wave = 0
        self.running = False
        self._lockstep = lockstep

    def first_request(self, wave: int) -> Effect:
        """Take note that a client sent a request while it believed that engines pause in `wave`.

        It may be right, or behind: both ask for the wave that comes now. It is ahead of a
        coordinator that was started again. That engines run is not concluded from waking them;
        rank 0 says so, or they are woken again.
        """
        if not self._follows(wave) or (self.running and wave <= self.wave):
            return NOTHING
        if wave > self.wave:
            self.wave = wave
            self.running = False
        return Effect(Wake(self.wave))

    def completed(self, wave: int) -> Effect:
        """Take note that all engines are idle after `wave`."""
        if not self._follows(wave) or wave < self.wave:
            return NOTHING
        self.wave = wave + 1
        self.running = False
        return Effect(publish=True)

    def started(self, wave: int) -> Effect:
        """Take note that an engine began to run in `wave`: the others have to, too."""
        if not self._follows(wave) or wave < self.wave or (wave == self.wave and self.running):
            return NOTHING
        self.wave = wave
        self.running = True
        return Effect(Wake(wave), publish=True)

    def _follows(self, wave: int) -> bool:
        return self._lockstep and 0 <= wave < LAST_WAVE
