"""The client without its sockets: frames and times in, events and frames out.

ClientCore holds everything a client decides: which engine a request goes to, what each
message means, what ends when an engine is lost. It never waits and never reads a clock. A
shell moves bytes: after every call it carries out `take_actions`, sends what `take_sendable`
offers, and hands `take_events` to whoever waits.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from enginecore_client._addresses.addresses import ClientAddresses
from enginecore_client._core.admission import check_types
from enginecore_client._core.books import CallRecord, Ids, Outgoing, RequestRecord
from enginecore_client._core.connection import Connection, Transport
from enginecore_client._core.delivery import Delivery
from enginecore_client._core.dispatch import Dispatcher
from enginecore_client._core.endings import Endings
from enginecore_client._core.events import (
    Action,
    Announce,
    Event,
    LoadsMissed,
    RequestEnded,
)
from enginecore_client._core.fleet import Fleet
from enginecore_client._core.ledger import Ledger
from enginecore_client._core.routing import Balancer, LoadScore, score
from enginecore_client._core.session import PodTransport
from enginecore_client._core.states import FINAL, Channel
from enginecore_client._core.waves import Waves
from enginecore_client.errors import (
    ClientClosedError,
    EngineCoreError,
    EngineDrainingError,
    OverloadedError,
    RequestRejectedError,
    RequestTimeoutError,
)
from enginecore_wire.codec import MsgpackDecoder
from enginecore_wire.coordination import LoadReport
from enginecore_wire.frames import Frame
from enginecore_wire.outputs import EngineCoreOutputs
from enginecore_wire.requests import EngineCoreRequest
from enginecore_wire.wording import counted

OVERSLEPT_SECONDS: Final = 1.0
"""A tick that comes this late means that this process stood still, not the engines."""

LOADS_STALE_SECONDS: Final = 12.0
"""A coordinator publishes every 5 s; after twice that its loads count no more."""


class CoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a client is: its name in pods' logs, its place among clients, its patience.

    `lockstep` engines step together, in waves. `load_score` is what a request costs on an engine.
    `advice` is what to do if nobody answers at addresses that do not change.
    """

    client_name: str = ""
    client_index: int = 0
    client_count: int = 1
    reconnect_seconds: float = 0.6
    lockstep: bool = False
    load_score: LoadScore = score
    advice: str = ""


class ClientCore:
    """All engines of one client. `now` is monotonic seconds everywhere.

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
        self.closed = False
        self._ids = ids
        self._fleet = Fleet(
            transport or PodTransport(settings.client_name, ids, settings.reconnect_seconds),
            settings.advice,
        )
        self._ledger = Ledger()
        self._balancer: Balancer[int] = Balancer(
            settings.client_index, settings.client_count, settings.load_score
        )
        self.waves = Waves(lockstep=settings.lockstep)
        self._delivery = Delivery(self._fleet, self._ledger, self._balancer, self.waves)
        self._dispatcher = Dispatcher(
            self._fleet, self._ledger, self._balancer, self._delivery.admissions, ids, wall
        )
        self._endings = Endings(self._fleet, self._ledger, self._delivery, self._balancer)
        self._sendable: set[int] = set()
        self._last_tick = now
        self._loads_at = now
        self._loads_missed = False

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
            self._loads_at = now
            self._loads_missed = False
        for connection in self._fleet.update(addresses, now):
            self._endings.retire(connection)
        self._endings.close_retired()

    def add(
        self,
        request: EngineCoreRequest,
        sink: Any,
        now: float,
        *,
        deadline: float | None = None,
        retry: bool = False,
    ) -> RequestRecord:
        """Check a request and send it to an engine.

        Args:
            request: its `request_id` is the caller's, "" for a random one.
            sink: the shell's stream, or None for get_output.
            now: monotonic seconds.
            deadline: monotonic seconds after which it ends with RequestTimeoutError.
            retry: send it again, also later, as long as it has no token.

        Raises:
            RequestRejectedError: a field is wrong.
            EngineNotReadyError, EngineDeadError, EngineDrainingError, OverloadedError:
                no engine takes it now, and `retry` is not set.
            ClientClosedError: the client is closed.
        """
        self._check_open()
        check_types(request)
        name = request.request_id or self._ids.request()
        if sink is None and self._ledger.queued(name):
            raise RequestRejectedError(
                f"request_id: {name!r} is unfinished; get_output could not tell the two apart",
                field="request_id",
                request_ids=[name],
            )
        request = msgspec.structs.replace(request, request_id=name)
        record = RequestRecord(name, "", sink, 0, now, deadline, request)
        try:
            self._send(record, now)
        except EngineCoreError as error:
            if not (retry and error.retryable):
                raise
            record.internal_id = self._ids.internal(name)
            self._ledger.enter(record)
            self._ledger.fail([record], None, error, now)
            return record
        if not retry:
            record.request = None
        self._ledger.enter(record)
        return record

    def abort(self, request_ids: Sequence[str]) -> list[str]:
        """End requests by the names their callers know; return those that had not ended."""
        ended = []
        for name in dict.fromkeys(request_ids):
            records = self._ledger.named(name)
            for record in records:
                self.abort_record(record)
            if records:
                ended.append(name)
        return ended

    def abort_record(self, record: RequestRecord) -> None:
        """End one request; its engine forgets it."""
        connection = self._fleet.connections.get(record.link or 0)
        if record not in self._ledger.named(record.request_id):
            return
        self._cancel(connection, [record])
        self._ledger.leave(record, connection)
        rank = self._fleet.rank(connection) if connection else None
        self._ledger.events.append(RequestEnded(rank, record, None))
        self._endings.close_retired()

    def call_targets(self, engine: int | None) -> list[int]:
        """Return the connections a call goes to: one engine's, or all that work.

        Raises:
            RequestRejectedError: there is no engine of that rank.
            EngineNotReadyError, EngineDeadError: there is none now.
            ClientClosedError: the client is closed.
        """
        self._check_open()
        if engine is not None and (type(engine) is not int or not self._fleet.expects(engine)):
            known = ", ".join(map(str, self.ranks())) or "not known yet"
            raise RequestRejectedError(
                f"engine: there is no engine {engine!r}; engines are {known}", field="engine"
            )
        working = self._fleet.working()
        found = [c.link for c in working if engine is None or self._fleet.rank(c) == engine]
        if not found:
            raise self.nobody(engine)
        return found

    def call(
        self, link: int, method: str, args: Sequence[Any], future: Any, deadline: float | None
    ) -> CallRecord:
        """Send a utility call to one engine.

        Raises:
            RequestRejectedError: the method is unknown or an argument cannot travel.
        """
        connection = self._fleet.connections[link]
        call = CallRecord(self._ids.call(), method, future, deadline, link=link)
        frames = self._delivery.admissions[link].call(call.call_id, method, list(args))
        connection.outbox.append(Outgoing(frames, call))
        self._ledger.enter_call(call, connection)
        self._sendable.add(link)
        return call

    def forget_call(self, call: CallRecord) -> None:
        """Drop a call whose caller waits no more; a late reply is ignored."""
        connection = self._fleet.connections.get(call.link)
        if connection is not None and call.call_id in connection.calls:
            self._ledger.end_call(call, connection, None, ClientClosedError("cancelled"))

    def connected(self, link: int, channel: Channel, now: float) -> None:
        """Take note of HANDSHAKE_SUCCEEDED on one socket."""
        connection = self._fleet.connections.get(link)
        if connection is not None:
            connection.connected(channel, now)
            self._sendable.add(link)

    def disconnected(self, link: int, channel: Channel, now: float) -> None:
        """Take note of DISCONNECTED on one socket."""
        connection = self._fleet.connections.get(link)
        if connection is not None:
            connection.disconnected(channel, now)
            if connection.state in FINAL:
                self._endings.lost(connection, now)

    def announced(self, link: int, payload: Frame, now: float) -> None:
        """Take in the READY payload of an engine that dialled in.

        Whoever announces itself while the engine of its rank is in use takes its place: the
        socket lets nobody in under a name before the one who had it is gone.
        """
        connection = self._fleet.connections.get(link)
        if connection is not None and connection.ready is not None:
            connection.lose("another process of its rank took its place", now)
            self._endings.lost(connection, now)
            connection = self._fleet.successor(connection)
        if connection is None:
            return
        try:
            ready = connection.announced(payload, now)
        except msgspec.DecodeError:
            self._delivery.unreadable += 1
            return
        if ready is not None:
            self._delivery.ready(connection, ready, now)
            self._sendable.add(connection.link)
        elif connection.state in FINAL:
            self._endings.lost(connection, now)

    def staged(self, rank: int, stage: str, now: float) -> None:
        """Take note how far the engine of a rank has come that is not ready."""
        connection = self._fleet.holder(rank)
        if connection is not None:
            connection.staged(stage, now)

    def exited(self, rank: int, ending: str, now: float) -> None:
        """Take note that the process of a rank ended; `ending` says how."""
        connection = self._fleet.holder(rank)
        if connection is not None:
            connection.exited(ending, now)
            if connection.state in FINAL:
                self._endings.lost(connection, now)

    def listened(self, link: int, listens: bool) -> None:
        """Take note whether anybody listens at an engine's address, be it an engine or not."""
        connection = self._fleet.connections.get(link)
        if connection is not None:
            connection.listened = listens

    def is_open(self, link: int) -> bool:
        """Say whether a link is still wanted."""
        return link in self._fleet.connections

    def unreachable(self, link: int, reason: str) -> None:
        """Take note that no connection can even be tried."""
        connection = self._fleet.connections.get(link)
        if connection is not None:
            connection.name_error = reason

    def receive(self, link: int, frames: list[Frame], now: float) -> None:
        """Take in one message from an engine's output socket."""
        connection = self._fleet.connections.get(link)
        if connection is None:
            return
        self._delivery.receive(connection, frames, now)
        if connection.ended:
            self._endings.lost(connection, now)
            return
        if connection.waits_to_send:
            self._sendable.add(link)
        if not connection.requests:
            self._endings.close_retired()

    def take_outputs(self, link: int, message: EngineCoreOutputs, now: float) -> None:
        """Take in a message that never was bytes: of an engine in this process."""
        self._delivery.outputs(self._fleet.connections[link], message, now)

    def receive_loads(self, frames: Sequence[Frame], now: float) -> None:
        """Take in one message of the coordinator."""
        try:
            report = _LOADS.decode(frames[0])
        except msgspec.DecodeError:
            self._delivery.unreadable += 1
            return
        self._loads_at = now
        self._loads_missed = False
        self._delivery.loads_known = True
        self._delivery.loads(report.loads or [])
        self.waves.published(report.wave, report.running)

    def tick(self, now: float) -> None:
        """Let time pass: liveness, deadlines, replacements, retries."""
        late = now - self._last_tick > OVERSLEPT_SECONDS
        self._last_tick = now
        for connection in list(self._fleet.connections.values()):
            if late:
                connection.overslept(now)
            connection.tick(now)
            if connection.state in FINAL:
                self._endings.lost(connection, now)
            else:
                self._sendable.add(connection.link)
        self._fleet.tick(now)
        self._expire(now)
        self._announce(self.waves.overdue(self.unfinished, now))
        for record in self._ledger.due(now):
            self._try_again(record, now)
        if now - self._loads_at > LOADS_STALE_SECONDS:
            self._delivery.loads_known = False
            self._loads_at = now
            self._fleet.subscribe_again()
            self._miss_loads()
        self._endings.close_retired()

    def close(self, error: ClientClosedError, now: float) -> None:
        """End everything: requests and calls with `error`, sessions with BYE."""
        if self.closed:
            return
        self.closed = True
        for record in [record for _, record in self._ledger.waiting.values()]:
            record.request = None
            self._ledger.fail([record], None, error, now)
        for connection in list(self._fleet.connections.values()):
            self._ledger.fail(connection.requests.values(), connection, error, now)
            for call in list(connection.calls.values()):
                self._ledger.end_call(call, connection, None, error)
            self._fleet.close(connection, farewell=True)
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

    def pending_calls(self) -> dict[int, Any]:
        """Return the future of each unanswered call, by call id."""
        connections = self._fleet.connections.values()
        return {i: call.future for c in connections for i, call in c.calls.items()}

    def nobody(self, rank: int | None = None) -> EngineCoreError:
        """Return the error that no engine (or not the one of this rank) is ready."""
        return self._dispatcher.nobody(rank, self._last_tick)

    def missing(self, now: float) -> list[str]:
        """Return one line per engine that is not ready: rank, address and phase."""
        return self._fleet.missing(now)

    def standing(self, now: float) -> str:
        """Return where the engines stand that are not ready, and what to do if that is known."""
        return self._fleet.standing(now)

    def refusal(self) -> str | None:
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
        links = self._sendable
        if not links:
            return []
        self._sendable = set()
        connections = self._fleet.connections
        return [connections[link] for link in links if link in connections]

    def take_events(self) -> list[Event]:
        """Return what happened, in order."""
        events = self._ledger.events
        if not events:
            return []
        self._ledger.events = []
        return events

    def _miss_loads(self) -> None:
        """Tell once that no coordinator is heard at the address there is for one."""
        address = self._fleet.stats_address
        if address is not None and not self._loads_missed:
            self._loads_missed = True
            self._ledger.events.append(LoadsMissed(address, LOADS_STALE_SECONDS))

    def _send(self, record: RequestRecord, now: float) -> None:
        assert record.request is not None
        record.request.current_wave = self.waves.current_wave
        connection = self._dispatcher.send(record, now)
        self._sendable.add(connection.link)
        if self.waves.lockstep:
            self._announce(self.waves.added(self._fleet.rank(connection), now))

    def _announce(self, message: bytes | None) -> None:
        if message is not None:
            self._fleet.actions.append(Announce(message))

    def _expire(self, now: float) -> None:
        for record in self._ledger.overdue(now):
            connection = self._fleet.connections.get(record.link or 0)
            self._cancel(connection, [record])
            error = RequestTimeoutError(
                f"request {record.request_id!r} was not finished {now - record.added_at:.1f} s "
                f"after it was added; it had {counted(record.tokens, 'token')}",
                engine=self._fleet.rank(connection) if connection else None,
            )
            self._ledger.fail_and_report([record], connection, error, now)
        for call in self._ledger.overdue_calls(now):
            target = self._fleet.connections[call.link]
            late = RequestTimeoutError(f"{call.method}: no reply before the deadline")
            self._ledger.end_call(call, target, None, late)

    def _try_again(self, record: RequestRecord, now: float) -> None:
        try:
            self._send(record, now)
        except EngineCoreError as error:
            if not error.retryable:
                self._ledger.fail_and_report([record], None, error, now)
            elif isinstance(error, OverloadedError | EngineDrainingError):
                self._ledger.fail([record], None, error, now)

    def _cancel(self, connection: Connection | None, records: list[RequestRecord]) -> None:
        if connection is not None and connection.state not in FINAL:
            self._delivery.cancel(connection, [record.internal_id for record in records])
            self._sendable.add(connection.link)

    def _check_open(self) -> None:
        if self.closed:
            raise ClientClosedError("the client is closed; create another one")


_LOADS: Final = MsgpackDecoder(LoadReport)
