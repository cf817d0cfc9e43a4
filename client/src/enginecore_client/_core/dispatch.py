"""From a request to the engine that gets it."""

from collections.abc import Callable, Mapping

from enginecore_client._core.admission import Admission
from enginecore_client._core.books import Ids, Outgoing, RequestRecord
from enginecore_client._core.connection import Connection
from enginecore_client._core.events import RequestAdded
from enginecore_client._core.fleet import Fleet
from enginecore_client._core.ledger import Ledger
from enginecore_client._core.routing import Balancer, keeper_of
from enginecore_client.errors import (
    AuthenticationError,
    EngineCoreError,
    EngineDeadError,
    EngineDrainingError,
    EngineNotReadyError,
    OverloadedError,
    RequestRejectedError,
)
from enginecore_wire.requests import EngineCoreRequest, LateInteraction, PoolingParams


class Dispatcher:
    """Chooses an engine, encodes the request for it and puts it into its outbox.

    Args:
        fleet: the engines there are.
        ledger: where requests are entered.
        balancer: which engine is best.
        admissions: the rules of each engine, by link.
        ids: where internal ids come from.
        wall: wall-clock seconds, for arrival times.
    """

    def __init__(
        self,
        fleet: Fleet,
        ledger: Ledger,
        balancer: Balancer[int],
        admissions: Mapping[int, Admission],
        ids: Ids,
        wall: Callable[[], float],
    ) -> None:
        self._fleet = fleet
        self._ledger = ledger
        self._balancer = balancer
        self._admissions = admissions
        self._ids = ids
        self._wall = wall

    def send(self, record: RequestRecord, now: float, wave: int) -> Connection:
        """Give a request to an engine; it leaves with the connection's outbox.

        Raises:
            RequestRejectedError: a field is wrong.
            EngineNotReadyError, EngineDeadError, EngineDrainingError, OverloadedError:
                no engine takes it now.
        """
        request = record.request
        assert request is not None
        connection = self._choose(self._rank_of(request), now)
        link = connection.link
        internal_id = self._ids.internal(record.request_id)
        frames, record.prompt_tokens = self._admissions[link].request(
            request, internal_id, self._wall(), wave
        )
        if record.internal_id:
            self._ledger.rename(record, internal_id)
        record.internal_id = internal_id
        record.link = link
        record.engine = engine = self._fleet.rank(connection)
        connection.requests[internal_id] = record
        connection.outbox.append(Outgoing(frames, record))
        self._ledger.events.append(RequestAdded(engine, record))
        return connection

    def _rank_of(self, request: EngineCoreRequest) -> int | None:
        """Return the rank that a request has to go to; None where any will do."""
        rank, pooling = request.data_parallel_rank, request.pooling_params
        if rank is None and isinstance(pooling, PoolingParams):
            late = pooling.late_interaction_params
            ranks = self._fleet.ranks()
            if isinstance(late, LateInteraction) and isinstance(late.query_key, str) and ranks:
                return keeper_of(late.query_key, ranks)
        return rank

    def _choose(self, rank: int | None, now: float) -> Connection:
        sole = self._fleet.sole() if rank is None else None
        if sole is not None and self._is_free(sole):
            self._balancer.chose(self._fleet.rank(sole))
            return sole
        working = self._fleet.working()
        if rank is not None:
            if type(rank) is not int or not self._fleet.knows(rank):
                raise self.unknown("data_parallel_rank", rank)
            working = [c for c in working if self._fleet.rank(c) == rank]
        accepting = [c for c in working if c.accepting]
        if not accepting:
            if working:
                raise EngineDrainingError("no engine takes new requests: all are draining")
            raise self.nobody(rank, now)
        free = [c for c in accepting if self._is_free(c)]
        if not free:
            raise OverloadedError(
                f"every engine holds its limit of {self._admissions[accepting[0].link].in_flight} "
                "unfinished requests of this client; wait for some to finish"
            )
        by_rank = {self._fleet.rank(c): c for c in free}
        clients = max(c.live_clients for c in free)
        return by_rank[
            self._balancer.choose({r: len(c.requests) for r, c in by_rank.items()}, clients)
        ]

    def _is_free(self, connection: Connection) -> bool:
        """Say whether an engine takes requests and has room for one."""
        admission = self._admissions[connection.link]
        return connection.accepting and len(connection.requests) < admission.in_flight

    def unknown(self, field: str, rank: object) -> RequestRejectedError:
        """Return the error that there is no engine of this rank; `field` is where it was named."""
        known = ", ".join(map(str, self._fleet.ranks())) or "not known yet"
        return RequestRejectedError(
            f"{field}: there is no engine {rank!r}; engines are {known}", field=field
        )

    def nobody(self, rank: int | None, now: float) -> EngineCoreError:
        """Return the error that no engine (or not the one of this rank) is ready."""
        where = self._fleet.standing(now) or "none has an address"
        if rank is not None and not self._fleet.expects(rank):
            where = f"engine {rank} has no address now: it is being replaced, or was removed"
        error: EngineCoreError
        errors = self._fleet.last_errors()
        if errors and all(isinstance(each, AuthenticationError) for each in errors):
            error = AuthenticationError(f"no engine takes this client: {where}", engine=rank)
        elif errors:
            error = EngineDeadError(f"no engine is alive: {where}", engine=rank)
        else:
            error = EngineNotReadyError(f"no engine is ready: {where}", engine=rank)
        if self._fleet.outdated(now):
            error.retryable = False
        return error
