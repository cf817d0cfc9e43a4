"""What the coordinator says of all engines, and what to do when it says nothing."""

from collections.abc import Sequence
from typing import Final

import msgspec

from enginecore_client._core.delivery import Delivery
from enginecore_client._core.events import LoadsMissed
from enginecore_client._core.fleet import Fleet
from enginecore_client._core.ledger import Ledger
from enginecore_client._core.waves import Waves
from enginecore_wire.codec import MsgpackDecoder
from enginecore_wire.coordination import LoadReport
from enginecore_wire.frames import Frame

STALE_SECONDS: Final = 12.0
"""A coordinator publishes every 5 s; after twice that its loads count no more."""


class Loads:
    """The coordinator's reports; where none comes, engines' own stats count.

    Args:
        fleet: the engines there are, and the coordinator's address.
        ledger: where it is told that no report comes.
        delivery: gives each engine's load to the balancer.
        waves: how far engines that step together are.
        now: monotonic seconds.
    """

    def __init__(
        self, fleet: Fleet, ledger: Ledger, delivery: Delivery, waves: Waves, now: float
    ) -> None:
        self._fleet = fleet
        self._ledger = ledger
        self._delivery = delivery
        self._waves = waves
        self._heard_at = now
        self._missed = False

    def expect(self, now: float) -> None:
        """Wait for the reports of another coordinator."""
        self._heard_at = now
        self._missed = False

    def receive(self, frames: Sequence[Frame], now: float) -> None:
        """Take in one message of the coordinator."""
        try:
            report = _LOADS.decode(frames[0])
        except msgspec.DecodeError:
            self._delivery.unreadable += 1
            return
        self.expect(now)
        self._delivery.loads_known = True
        self._delivery.loads(report.loads or [])
        self._waves.published(report.wave, report.running)

    def tick(self, now: float) -> None:
        """Subscribe again, and tell once, when nothing was heard for too long."""
        if now - self._heard_at <= STALE_SECONDS:
            return
        self._delivery.loads_missed()
        self._heard_at = now
        self._fleet.subscribe_again()
        address = self._fleet.stats_address
        if address is not None and not self._missed:
            self._missed = True
            self._ledger.events.append(LoadsMissed(address, STALE_SECONDS))


_LOADS: Final = MsgpackDecoder(LoadReport)
