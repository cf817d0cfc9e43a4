"""The client without its sockets: frames and times in, events and frames out.

ClientCore holds everything a client decides: which engine a request goes to, what each
message means, what ends when an engine is lost. It never waits and never reads a clock. A
shell moves bytes: after every call it carries out `take_actions`, sends what `take_sendable`
offers, and hands `take_events` to whoever waits.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from enginecore_client._addresses.addresses import ClientAddresses
from enginecore_client._core.books import Ids
from enginecore_client._core.calls import Calls
from enginecore_client._core.connection import Connection, Transport
from enginecore_client._core.delivery import Delivery
from enginecore_client._core.dispatch import Dispatcher
from enginecore_client._core.endings import Endings
from enginecore_client._core.events import Action, Event
from enginecore_client._core.fleet import Fleet
from enginecore_client._core.ledger import Ledger
from enginecore_client._core.links import Links
from enginecore_client._core.loads import Loads
from enginecore_client._core.requests import Requests
from enginecore_client._core.routing import Balancer, LoadScore, score
from enginecore_client._core.session import PodTransport
from enginecore_client._core.waves import Waves
from enginecore_client.errors import ClientClosedError, EngineCoreError

OVERSLEPT_SECONDS: Final = 1.0
"""A tick that comes this late means that this process stood still, not the engines."""


class CoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a client is: its name in pods' logs, its place among clients, its patience.

    `lockstep` engines step together, in waves. `load_score` is what a request costs on an engine.
    `check_prompts` says whether token ids of prompts are checked before they are sent.
    `advice` is what to do if nobody answers at addresses that do not change.
    """

    client_name: str = ""
    client_index: int = 0
    client_count: int = 1
    reconnect_seconds: float = 0.6
    lockstep: bool = False
    load_score: LoadScore = score
    check_prompts: bool = True
    advice: str = ""


class ClientCore:
    """All engines of one client. `now` is monotonic seconds everywhere.

    `requests` and `calls` are what callers do; `links` and `loads` take in what a shell sees of
    engines and of the coordinator; `waves` says how far engines are that step together.

    Args:
        settings: what the client is.
        ids: where random names come from.
        wall: wall-clock seconds, for arrival times.
        transport: how engines are reached; None for engine servers.
    """

    def __init__(
        self,
        settings: CoreSettings,
        ids: Ids,
        wall: Callable[[], float],
        now: float,
        transport: Transport | None = None,
    ) -> None:
        self._fleet = fleet = Fleet(
            transport or PodTransport(settings.client_name, ids, settings.reconnect_seconds),
            settings.advice,
        )
        self._ledger = ledger = Ledger()
        self.waves = waves = Waves(lockstep=settings.lockstep)
        balancer: Balancer[int] = Balancer(
            settings.client_index, settings.client_count, settings.load_score
        )
        self._delivery = delivery = Delivery(
            fleet, ledger, balancer, waves, prompts=settings.check_prompts
        )
        self._dispatcher = dispatcher = Dispatcher(
            fleet, ledger, balancer, delivery.admissions, ids, wall
        )
        self._endings = endings = Endings(fleet, ledger, delivery, balancer)
        self.requests = Requests(fleet, ledger, dispatcher, delivery, endings, waves, ids)
        self.calls = Calls(fleet, ledger, delivery, dispatcher, ids)
        self.links = Links(fleet, delivery, endings)
        self.loads = Loads(fleet, ledger, delivery, waves, now)
        self._last_tick = now

    @property
    def closed(self) -> bool:
        """Say whether the client was closed."""
        return self._ledger.closed

    @property
    def unfinished(self) -> int:
        """Return how many requests are unfinished."""
        return len(self._ledger)

    @property
    def unreadable(self) -> int:
        """Return how many messages could not be read so far."""
        return self._delivery.unreadable

    def set_addresses(self, addresses: ClientAddresses, now: float) -> None:
        """Follow new addresses: open what is new, retire what is gone."""
        if addresses.stats_update_address != self._fleet.stats_address:
            self.loads.expect(now)
        for connection in self._fleet.update(addresses, now):
            self._endings.retire(connection)
        self._endings.close_retired()

    def tick(self, now: float) -> None:
        """Let time pass: liveness, deadlines, replacements, retries."""
        late = now - self._last_tick > OVERSLEPT_SECONDS
        self._last_tick = now
        self.links.tick(now, late=late)
        self.requests.tick(now)
        self.calls.tick(now)
        self.loads.tick(now)
        self._endings.close_retired()

    def close(self, error: ClientClosedError, now: float) -> None:
        """End everything: requests and calls with `error`, sessions with BYE."""
        if self.closed:
            return
        self._ledger.close()
        for record in [record for _, record in self._ledger.waiting.values()]:
            record.request = None
            self._ledger.fail([record], None, error, now)
        for connection in list(self._fleet.connections.values()):
            self._fleet.close(connection, farewell=True)
            self._ledger.fail(connection.requests.values(), connection, error, now)
            for call in list(connection.calls.values()):
                self._ledger.end_call(call, connection, None, error)
        self._endings.retired.clear()

    def all_ready(self, enough: int | None = None) -> bool:
        """Say whether every engine that has an address is ready (and there is one), or `enough`
        of them."""
        working = len(self._fleet.working())
        if enough is not None and working >= enough:
            return True
        return working > 0 and not self._fleet.missing(self._last_tick)

    @property
    def engine_dead(self) -> bool:
        """Say whether every engine that has an address was lost, and none is back."""
        return self._fleet.last_errors() is not None

    def ranks(self) -> list[int]:
        """Return the ranks of the engines that have an address, in order."""
        return self._fleet.ranks()

    def facts(self) -> dict[int, dict[str, Any]]:
        """Return what each engine in use says about itself, by rank: its READY payload."""
        working = self._fleet.working()
        return {self._fleet.rank(c): c.ready.engine for c in working if c.ready is not None}

    def nobody(self, rank: int | None = None) -> EngineCoreError:
        """Return the error that no engine (or not the one of this rank) is ready."""
        return self._dispatcher.nobody(rank, self._last_tick)

    def missing(self, now: float) -> list[str]:
        """Return one line per engine that is not ready: rank, address and phase."""
        return self._fleet.missing(now)

    def standing(self, now: float) -> str:
        """Return where the engines stand that are not ready, and what to do if that is known."""
        return self._fleet.standing(now)

    def refusal(self) -> EngineCoreError | None:
        """Return why an engine will never be ready for this client, or None."""
        return self._fleet.refusal()

    def take_actions(self) -> list[Action]:
        """Return what the shell has to do with sockets, in order."""
        actions = self._fleet.actions
        if not actions:
            return []
        self._fleet.actions = []
        return actions

    def take_sendable(self) -> list[Connection]:
        """Return the connections that may have frames to send."""
        return self._fleet.take_sendable()

    def take_events(self) -> list[Event]:
        """Return what happened, in order."""
        events = self._ledger.events
        if not events:
            return []
        self._ledger.events = []
        return events
