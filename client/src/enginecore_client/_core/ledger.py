"""Unfinished requests and calls of all connections: found by name, ended exactly once."""

from collections.abc import Iterable
from typing import Any

from enginecore_client._core.books import CallRecord, RequestRecord
from enginecore_client._core.connection import Connection
from enginecore_client._core.events import CallEnded, Event, Reported, RequestEnded, RequestSetAside
from enginecore_client.errors import (
    ClientClosedError,
    EngineCoreError,
    EngineDrainingError,
    OverloadedError,
)

RETRY_FIRST_SECONDS = 0.05
RETRY_MAX_SECONDS = 2.0


class Ledger:
    """Books over all connections; what ends goes into `events`.

    `queued_count` is the number of unfinished requests whose outputs get_output returns. `closed`
    says that nothing can be entered any more.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.closed = False
        self.queued_count = 0
        self.waiting: dict[str, tuple[float, RequestRecord]] = {}
        self._names: dict[str, list[RequestRecord]] = {}
        self._timed: dict[str, RequestRecord] = {}
        self._timed_calls: dict[int, CallRecord] = {}

    def __len__(self) -> int:
        return sum(len(records) for records in self._names.values())

    def close(self) -> None:
        """Let nothing in any more."""
        self.closed = True

    def check_open(self) -> None:
        """Refuse what comes too late.

        Raises:
            ClientClosedError: the client is closed.
        """
        if self.closed:
            raise ClientClosedError("the client is closed; create another one")

    def enter(self, record: RequestRecord) -> None:
        """Take a request in."""
        self._names.setdefault(record.request_id, []).append(record)
        self.queued_count += record.sink is None
        if record.deadline is not None:
            self._timed[record.internal_id] = record

    def enter_call(self, call: CallRecord, connection: Connection) -> None:
        """Take a call in."""
        connection.calls[call.call_id] = call
        if call.deadline is not None:
            self._timed_calls[call.call_id] = call

    def named(self, name: str) -> list[RequestRecord]:
        """Return the unfinished requests that a caller knows as `name`."""
        return list(self._names.get(name, ()))

    def queued(self, name: str) -> bool:
        """Say whether get_output still has outputs of a request of that name to come."""
        return any(record.sink is None for record in self._names.get(name, ()))

    def leave(self, record: RequestRecord, connection: Connection | None) -> None:
        """Forget a request, however it ended."""
        if connection is not None:
            connection.forget(record.internal_id)
        self.waiting.pop(record.internal_id, None)
        self._timed.pop(record.internal_id, None)
        same = self._names.get(record.request_id, [])
        if record in same:
            same.remove(record)
            self.queued_count -= record.sink is None
        if not same:
            self._names.pop(record.request_id, None)

    def rename(self, record: RequestRecord, internal_id: str) -> None:
        """Give a request that is sent again another internal id."""
        self.waiting.pop(record.internal_id, None)
        if self._timed.pop(record.internal_id, None) is not None:
            self._timed[internal_id] = record
        record.internal_id = internal_id

    def fail(
        self,
        records: Iterable[RequestRecord],
        connection: Connection | None,
        error: EngineCoreError,
        now: float,
    ) -> list[str]:
        """End requests with an error, or set those aside that may be sent again.

        Returns:
            The names of the ended requests that get_output has to report.
        """
        reported = []
        for record in list(records):
            if record.request is not None and record.tokens == 0 and error.retryable:
                self._set_aside(record, connection, error, now)
                continue
            self.leave(record, connection)
            own = error.again([record.request_id])
            self.events.append(RequestEnded(error.engine, record, own))
            if record.sink is None:
                reported.append(record.request_id)
        return reported

    def fail_and_report(
        self,
        records: Iterable[RequestRecord],
        connection: Connection | None,
        error: EngineCoreError,
        now: float,
    ) -> None:
        """End requests with an error that get_output raises once for those it serves."""
        reported = self.fail(records, connection, error, now)
        if reported:
            self.events.append(Reported(error.again(reported)))

    def end_call(
        self, call: CallRecord, connection: Connection, value: Any, error: EngineCoreError | None
    ) -> None:
        """End a call with its value or its error."""
        connection.calls.pop(call.call_id, None)
        self._timed_calls.pop(call.call_id, None)
        self.events.append(CallEnded(call, value, error.again() if error else None))

    def overdue(self, now: float) -> list[RequestRecord]:
        """Return the requests whose deadline has passed."""
        return [r for r in self._timed.values() if r.deadline is not None and now >= r.deadline]

    def overdue_calls(self, now: float) -> list[CallRecord]:
        """Return the calls whose deadline has passed."""
        return [
            c for c in self._timed_calls.values() if c.deadline is not None and now >= c.deadline
        ]

    def due(self, now: float) -> list[RequestRecord]:
        """Return the requests set aside that may be sent again now."""
        return [record for when, record in self.waiting.values() if now >= when]

    def _set_aside(
        self,
        record: RequestRecord,
        connection: Connection | None,
        error: EngineCoreError,
        now: float,
    ) -> None:
        if connection is not None:
            connection.forget(record.internal_id)
            if error.engine is not None:
                self.events.append(RequestSetAside(error.engine))
        record.link = None
        record.sent = False
        delay = 0.0
        if isinstance(error, OverloadedError | EngineDrainingError):
            delay = min(RETRY_FIRST_SECONDS * 2**record.attempts, RETRY_MAX_SECONDS)
        record.attempts += 1
        self.waiting[record.internal_id] = (now + delay, record)
