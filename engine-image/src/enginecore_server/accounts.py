"""What engine messages say, booked: tokens, times, ends, and what the scheduler reports."""

import logging
import time
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from enginecore_server.heads import OutputsHead
from enginecore_server.logs import note
from enginecore_server.sessions import Request
from enginecore_server.state import ServerState
from enginecore_server.tally import FINISH_NAMES
from enginecore_wire.outputs import EngineCoreEvent, EventType, SchedulerStats

_OTHER_FINISH: Final = "other"

_log = logging.getLogger(__name__)


class OutputAccounts:
    """Books engine messages once they are sent.

    Args:
        state: the books.
    """

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._tally = state.tally
        self._requests = state.book.requests

    def book(self, heads: Sequence[OutputsHead]) -> float:
        """Note what a burst of messages said; return when, in monotonic seconds."""
        now = time.monotonic()
        find, tally = self._requests.get, self._tally
        for head in heads:
            if head.scheduler_stats is not None:
                self._book_stats(head.scheduler_stats, head.timestamp)
            for output in head.outputs:
                request = find(output.request_id)
                if request is None:
                    continue
                if output.events is not None:
                    self._book_events(request, output.events)
                if output.new_token_ids:
                    tally.generation_tokens += len(output.new_token_ids)
                    if request.first_at:
                        tally.between_tokens.observe(now - request.last_at)
                    else:
                        self._book_first(request, now)
                    request.last_at = now
                if output.finish_reason is not None:
                    self._book_last(request, output.finish_reason, now)
        return now

    def _book_stats(self, stats: SchedulerStats, timestamp: float) -> None:
        self._state.load.report(stats, timestamp)
        self._tally.prefix_queries += stats.prefix_cache_stats.queries
        self._tally.prefix_hits += stats.prefix_cache_stats.hits

    def _book_events(self, request: Request, told: Any) -> None:
        """Note when a request began to wait, and to run; vLLM counts from the last QUEUED and
        the first SCHEDULED."""
        try:
            events = msgspec.convert(told, list[EngineCoreEvent])
        except msgspec.ValidationError:
            return  # another engine's events: nothing else hangs on them
        for event in events:
            if event.type is EventType.QUEUED:
                request.queued_at = event.timestamp
            elif event.type is EventType.SCHEDULED:
                request.scheduled_at = request.scheduled_at or event.timestamp
            else:
                self._tally.preemptions += 1

    def _book_first(self, request: Request, now: float) -> None:
        request.first_at = now
        self._tally.prompt_tokens += request.prompt_tokens
        self._tally.first_token.observe(now - request.arrived)
        note(_log, "first output", request_id=request.request_id)

    def _book_last(self, request: Request, reason: int, now: float) -> None:
        name = FINISH_NAMES.get(reason, _OTHER_FINISH)
        tally = self._tally
        tally.finished[name] += 1
        tally.whole_request.observe(now - request.arrived)
        if request.first_at:
            tally.decode.observe(request.last_at - request.first_at)
            if request.scheduled_at:
                tally.queue.observe(request.scheduled_at - request.queued_at)
                tally.prefill.observe(request.first_at - request.scheduled_at)
                tally.inference.observe(request.last_at - request.scheduled_at)
        note(
            _log,
            "request finished",
            request_id=request.request_id,
            reason=name,
            seconds=now - request.arrived,
        )
        self._state.book.forget(request.session, [request.request_id])
