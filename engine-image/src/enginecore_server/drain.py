"""Leaving without breaking streams: no new requests, time for the running ones."""

import logging
import time

import msgspec

from enginecore_server import replies
from enginecore_server.desk import ClientDesk
from enginecore_server.state import ServerState
from enginecore_wire.control import Phase

_log = logging.getLogger(__name__)


class Drain:
    """One drain of the pod, from DRAINING to the last output.

    Args:
        state: the books.
        desk: tells clients and the engine.
    """

    def __init__(self, state: ServerState, desk: ClientDesk) -> None:
        self._state = state
        self._desk = desk
        self._deadline = float("inf")

    @property
    def done(self) -> bool:
        """Whether the pod drains and nothing is left to wait for."""
        return self._state.phases.phase is Phase.DRAINING and self._state.in_flight == 0

    def begin(self, reason: str, now: float) -> bool:
        """Take no new requests from `now` (monotonic seconds) on; return False if the engine
        is not ready, so that there is nothing to drain."""
        if self._state.phases.phase is Phase.DRAINING:
            return True
        if not self._state.phases.enter(Phase.DRAINING, "Drain", reason):
            return False
        seconds = self._state.config.drain_deadline_seconds
        self._deadline = now + seconds
        _log.info("draining for at most %.0f s: %s", seconds, reason)
        self._desk.tell_all(replies.draining(self._state))
        return True

    def hurry(self) -> None:
        """End what still runs at the next `check`."""
        self._deadline = float("-inf")

    def check(self, now: float) -> None:
        """End what is unfinished once the deadline has passed."""
        if self._state.phases.phase is not Phase.DRAINING or now < self._deadline:
            return
        for session in self._state.book.sessions():
            ids = list(session.requests)
            if ids:
                # Sending may end the session of a client that does not read, so it comes last.
                self._state.tally.finished["abort"] += len(ids)
                self._state.book.forget(session, ids)
                self._desk.abort_in_engine(session.slot, ids)
                outputs = replies.abort_outputs(self._state.config.rank, ids, time.monotonic())
                self._desk.exposed.send(
                    session, [msgspec.msgpack.encode(outputs)], engine_message=True
                )
