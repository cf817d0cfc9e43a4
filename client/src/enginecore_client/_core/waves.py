"""The waves of engines that step together, as one client sees them. Pure.

Ranks of a mixture-of-experts model run in lockstep: all of them step, or all pause. A wave is
one such run; it is counted when it ends. The coordinator wakes the ranks when a request comes
while they pause, and it learns of that request by FIRST_REQ of the client that sent it.
"""

from typing import Final

import msgspec

from enginecore_wire.coordination import LAST_WAVE, FirstRequest
from enginecore_wire.handshake import engine_identity

REMIND_SECONDS: Final = 1.0
"""FIRST_REQ is said again when nobody confirms that the engines run: it may have been lost."""


class Waves:
    """Whether the engines run, in which wave, and what the coordinator has to be told.

    `current_wave` goes into every request. `engines_running` is what this client believes: it
    is true from the first request on, until the coordinator says otherwise or the wave ends.

    Args:
        lockstep: whether the engines step together at all; if not, nothing ever happens here.
    """

    def __init__(self, *, lockstep: bool) -> None:
        self.current_wave = 0
        self.engines_running = False
        self.lockstep = lockstep
        self._confirmed = False
        self._said_at = 0.0
        self._last_engine = 0

    def added(self, engine: int, now: float) -> bytes | None:
        """Take note of a request sent to rank `engine`; return FIRST_REQ if it may be the one
        that has to wake the others."""
        if not self.lockstep:
            return None
        self._last_engine = engine
        if self.engines_running:
            return None
        self.engines_running = True
        return self._first_request(now)

    def published(self, wave: int, running: bool) -> None:
        """Take over what the coordinator says, which is right even if it counts from 0 again."""
        if self.lockstep and 0 <= wave <= LAST_WAVE:
            self.current_wave = wave
            self.engines_running = self._confirmed = running

    def completed(self, wave: int) -> None:
        """Take note that all engines are idle; an engine without a coordinator says so itself."""
        if self.lockstep and self.current_wave <= wave < LAST_WAVE:
            self.current_wave = wave + 1
            self.engines_running = self._confirmed = False

    def overdue(self, unfinished: int, now: float) -> bytes | None:
        """Return FIRST_REQ again if requests wait and nobody has confirmed that engines run."""
        if not self.lockstep or not unfinished or self._confirmed:
            return None
        if now - self._said_at < REMIND_SECONDS:
            return None
        return self._first_request(now)

    def _first_request(self, now: float) -> bytes:
        self._said_at = now
        identity = engine_identity(self._last_engine)
        return _ENCODER.encode(FirstRequest(identity, self.current_wave))


_ENCODER: Final = msgspec.msgpack.Encoder()
