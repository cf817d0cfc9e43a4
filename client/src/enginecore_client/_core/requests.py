"""Requests of one client: added, aborted, ended by the clock, sent again."""

from collections.abc import Sequence
from typing import Any

import msgspec

from enginecore_client._core.admission import check_types
from enginecore_client._core.books import Ids, RequestRecord
from enginecore_client._core.connection import Connection
from enginecore_client._core.delivery import Delivery
from enginecore_client._core.dispatch import Dispatcher
from enginecore_client._core.endings import Endings
from enginecore_client._core.events import RequestEnded
from enginecore_client._core.fleet import Fleet
from enginecore_client._core.ledger import Ledger
from enginecore_client._core.states import FINAL
from enginecore_client._core.waves import Waves
from enginecore_client.errors import (
    EngineCoreError,
    EngineDrainingError,
    OverloadedError,
    RequestRejectedError,
    RequestTimeoutError,
)
from enginecore_wire.requests import EngineCoreRequest
from enginecore_wire.wording import counted


class Requests:
    """What callers do with requests, and what time does to them.

    Args:
        fleet: the engines there are.
        ledger: what is unfinished.
        dispatcher: sends a request to an engine.
        delivery: tells an engine to forget one.
        endings: closes what only waited for its last request.
        waves: how far engines that step together are.
        ids: where random names come from.
    """

    def __init__(
        self,
        fleet: Fleet,
        ledger: Ledger,
        dispatcher: Dispatcher,
        delivery: Delivery,
        endings: Endings,
        waves: Waves,
        ids: Ids,
    ) -> None:
        self._fleet = fleet
        self._ledger = ledger
        self._dispatcher = dispatcher
        self._delivery = delivery
        self._endings = endings
        self._waves = waves
        self._ids = ids

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
        self._ledger.check_open()
        check_types(request)
        name = request.request_id or self._ids.request()
        if sink is None and self._ledger.queued(name):
            raise RequestRejectedError(
                f"request_id: {name!r} is unfinished; get_output could not tell the two apart",
                field="request_id",
                request_ids=[name],
            )
        if retry or not request.request_id:
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

    def tick(self, now: float) -> None:
        """End what is overdue, wake engines that slept over a request, send again what is due."""
        for record in self._ledger.overdue(now):
            connection = self._fleet.connections.get(record.link or 0)
            self._cancel(connection, [record])
            error = RequestTimeoutError(
                f"request {record.request_id!r} was not finished {now - record.added_at:.1f} s "
                f"after it was added; it had {counted(record.tokens, 'token')}",
                engine=self._fleet.rank(connection) if connection else None,
            )
            self._ledger.fail_and_report([record], connection, error, now)
        self._fleet.announce(self._waves.overdue(len(self._ledger), now))
        for record in self._ledger.due(now):
            self._try_again(record, now)

    def _send(self, record: RequestRecord, now: float) -> None:
        connection = self._dispatcher.send(record, now, self._waves.current_wave)
        self._fleet.sendable.add(connection.link)
        if self._waves.lockstep:
            self._fleet.announce(self._waves.added(self._fleet.rank(connection), now))

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
            self._fleet.sendable.add(connection.link)
