"""What ends with an engine: its requests and calls, its place among the others."""

from enginecore_client._core.connection import Connection
from enginecore_client._core.delivery import Delivery
from enginecore_client._core.events import (
    EngineAway,
    EngineDown,
    EngineLost,
    EngineRemoved,
    Reported,
)
from enginecore_client._core.fleet import Fleet
from enginecore_client._core.ledger import Ledger
from enginecore_client._core.routing import Balancer


class Endings:
    """Takes engines out of the books; `retired` are the links whose address is gone."""

    def __init__(
        self, fleet: Fleet, ledger: Ledger, delivery: Delivery, balancer: Balancer[int]
    ) -> None:
        self.retired: set[int] = set()
        self._fleet = fleet
        self._ledger = ledger
        self._delivery = delivery
        self._balancer = balancer

    def retire(self, connection: Connection) -> None:
        """Let an engine whose address is gone finish what it has."""
        self.retired.add(connection.link)
        rank = self._fleet.rank(connection)
        if connection.ready is not None and not self._serves(rank):
            self._ledger.events.append(EngineAway(rank))

    def lost(self, connection: Connection, now: float) -> None:
        """End everything on a connection that ended; its place is tried again."""
        rank = self._fleet.rank(connection)
        cause = connection.error
        assert cause is not None
        cause.engine = rank
        current = self._fleet.is_current(connection)
        known = connection.ready is not None
        had_work = bool(connection.requests or connection.calls)
        drained = connection.draining and not had_work
        reported = self._ledger.fail(connection.requests.values(), connection, cause, now)
        for call in list(connection.calls.values()):
            self._ledger.end_call(call, connection, None, cause)
        if known and not drained:
            self._ledger.events.append(EngineLost(rank, cause))
        # The end of a pod that was replaced already says nothing about its replacement.
        replaced = self._serves(rank)
        if known and not replaced:
            self._ledger.events.append(EngineDown(rank, cause))
        if reported or (known and current and not drained):
            self._ledger.events.append(Reported(cause.again(reported)))
        self._delivery.forget(connection)
        if not replaced:
            self._balancer.forget(rank)
        self._fleet.lost(connection, now)
        self._gone(connection, rank)

    def close_retired(self) -> None:
        """Close what is retired and has finished."""
        if not self.retired:
            return
        for link in list(self.retired):
            connection = self._fleet.connections[link]
            if not connection.requests and not connection.calls:
                rank = self._fleet.rank(connection)
                self._delivery.forget(connection)
                self._fleet.close(connection, farewell=connection.ready is not None)
                self._gone(connection, rank)

    def _serves(self, rank: int) -> bool:
        """Say whether an engine that takes requests has this rank."""
        return any(self._fleet.rank(connection) == rank for connection in self._fleet.working())

    def _gone(self, connection: Connection, rank: int) -> None:
        if connection.link in self.retired:
            self.retired.discard(connection.link)
            if not self._fleet.has_rank(rank):
                self._balancer.forget(rank)
                self._ledger.events.append(EngineRemoved(rank))
