"""Utility calls of one client: to whom, sent, forgotten, ended by the clock."""

from collections.abc import Callable, Sequence
from typing import Any

from enginecore_client._core.books import CallRecord, Ids, Outgoing
from enginecore_client._core.delivery import Delivery
from enginecore_client._core.dispatch import Dispatcher
from enginecore_client._core.fleet import Fleet
from enginecore_client._core.ledger import Ledger
from enginecore_client.errors import ClientClosedError, RequestTimeoutError


class Calls:
    """What callers do with control calls, and what time does to them.

    Args:
        fleet: the engines there are.
        ledger: what is unanswered.
        delivery: has the rules of each engine.
        dispatcher: knows why nobody answers, and who does not exist.
        ids: where call ids come from.
    """

    def __init__(
        self, fleet: Fleet, ledger: Ledger, delivery: Delivery, dispatcher: Dispatcher, ids: Ids
    ) -> None:
        self._fleet = fleet
        self._ledger = ledger
        self._delivery = delivery
        self._dispatcher = dispatcher
        self._ids = ids

    def targets(self, engine: int | None, now: float) -> list[int]:
        """Return the connections a call goes to: one engine's, or all that work.

        Raises:
            RequestRejectedError: there is no engine of that rank.
            EngineNotReadyError, EngineDeadError: there is none now.
            ClientClosedError: the client is closed.
        """
        self._ledger.check_open()
        if engine is not None and (type(engine) is not int or not self._fleet.knows(engine)):
            raise self._dispatcher.unknown("engine", engine)
        working = self._fleet.working()
        found = [c.link for c in working if engine is None or self._fleet.rank(c) == engine]
        if not found:
            raise self._dispatcher.nobody(engine, now)
        return found

    def send(
        self, link: int, method: str, args: Sequence[Any], future: Any, deadline: float | None
    ) -> CallRecord:
        """Send a utility call to one engine.

        Raises:
            RequestRejectedError: the method is unknown or an argument cannot travel.
        """
        return self.send_all([link], method, args, lambda: future, deadline)[0]

    def send_all(
        self,
        links: Sequence[int],
        method: str,
        args: Sequence[Any],
        make_future: Callable[[], Any],
        deadline: float | None,
    ) -> list[CallRecord]:
        """Send a utility call to several engines, or to none: what one refuses goes nowhere.

        Raises:
            RequestRejectedError: the method is unknown, or an argument cannot travel there.
        """
        ids = [self._ids.call() for _ in links]
        messages = [
            self._delivery.admissions[link].call(call_id, method, list(args))
            for link, call_id in zip(links, ids, strict=True)
        ]
        calls = []
        for link, call_id, frames in zip(links, ids, messages, strict=True):
            connection = self._fleet.connections[link]
            call = CallRecord(call_id, method, make_future(), deadline, link=link)
            connection.outbox.append(Outgoing(frames, call))
            self._ledger.enter_call(call, connection)
            self._fleet.sendable.add(link)
            calls.append(call)
        return calls

    def forget(self, call: CallRecord) -> None:
        """Drop a call whose caller waits no more; a late reply is ignored."""
        connection = self._fleet.connections.get(call.link)
        if connection is not None and call.call_id in connection.calls:
            self._ledger.end_call(call, connection, None, ClientClosedError("cancelled"))

    def pending(self) -> dict[int, Any]:
        """Return the future of each unanswered call, by call id."""
        connections = self._fleet.connections.values()
        return {i: call.future for c in connections for i, call in c.calls.items()}

    def tick(self, now: float) -> None:
        """End what is overdue."""
        for call in self._ledger.overdue_calls(now):
            target = self._fleet.connections[call.link]
            late = RequestTimeoutError(f"{call.method}: no reply before the deadline")
            self._ledger.end_call(call, target, None, late)
