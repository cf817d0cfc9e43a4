"""Who is told of what happened: metrics first, then whoever waits for it."""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import call
from typing import TYPE_CHECKING, Any, Protocol

from enginecore_client._core.books import RequestRecord
from enginecore_client._core.events import (
    CallEnded,
    Delivered,
    EngineDown,
    Event,
    LoadsMissed,
    RankTaken,
    Reported,
    RequestAdded,
    RequestEnded,
)
from enginecore_client._metrics import NoMetrics
from enginecore_client.errors import EngineCoreError
from enginecore_wire.outputs import EngineCoreOutput, EngineCoreOutputs

if TYPE_CHECKING:
    from enginecore_client._launch.launcher import Launcher

_LOG = logging.getLogger("enginecore_client")


class Sink(Protocol):
    """Where a stream's outputs go."""

    def put(self, item: EngineCoreOutput | EngineCoreOutputs | BaseException | None) -> None:
        """Take an output, an error, or None for an end without a last output."""


class Inbox(Sink, Protocol):
    """Where everything else goes, and what get_output reads."""

    def report(self, error: EngineCoreError) -> None:
        """Take an error that ends requests or is an engine's loss."""

    def finish(self, error: EngineCoreError) -> None:
        """Take note that nothing will come any more."""


class Teller:
    """Tells of the core's events.

    Args:
        metrics: told of every event before anybody else.
        inbox: what get_output reads.
        launcher: what started the engines, if this client did.
    """

    def __init__(self, metrics: NoMetrics, inbox: Inbox, launcher: "Launcher | None") -> None:
        self._metrics = metrics
        self._inbox = inbox
        self._launcher = launcher
        self._last: list[RequestRecord] | None = None
        self._puts: list[Callable[[EngineCoreOutput], None]] = []

    def tell(self, events: Sequence[Event]) -> None:
        """Tell of events, in order."""
        for event in events:
            self._metrics.observe(event)
        try:
            for event in events:
                if isinstance(event, Delivered):
                    self._hand_out(event)
                else:
                    self._tell(event)
        finally:
            self._last, self._puts = None, []  # readers run now; and nothing is kept from its end

    def _hand_out(self, event: Delivered) -> None:
        """Put outputs where their requests' readers find them.

        What comes in one burst for the same requests as the message before is put by C code:
        whoever waited was woken by that one, and no reader has run since.
        """
        records = event.records
        if records is self._last:
            if not self._puts:
                self._puts = [record.sink.put for record in records]
            deque(map(call, self._puts, event.outputs), maxlen=0)
        else:
            for record, output in zip(records, event.outputs, strict=True):
                sink = record.sink
                if sink is not None:
                    sink.put(output)
            self._last, self._puts = records if event.queued is None else None, []
        if event.queued is not None:
            self._inbox.put(event.queued)

    def _tell(self, event: Event) -> None:
        match event:
            case RequestAdded():
                return
            case RequestEnded(_, record, error):
                if record.sink is not None:
                    record.sink.put(error)
            case Reported(error):
                self._inbox.report(error)
            case LoadsMissed(address, seconds):
                _LOG.warning(
                    "no report came from the coordinator at %s for %g s: requests are balanced by "
                    "what the engines say themselves; check stats_update_address",
                    address,
                    seconds,
                )
            case RankTaken(engine, claimed, address):
                _LOG.warning(
                    "the engine at %s says that it is rank %d, which another one is: it is rank %d "
                    "here; give each engine a rank of its own",
                    address,
                    claimed,
                    engine,
                )
            case EngineDown(engine, _) if self._launcher is not None:
                self._launcher.lost(engine)
            case CallEnded(call) if not call.future.done():
                _settle(call.future, event)


def _settle(future: Any, event: CallEnded) -> None:
    """Give a call's caller what it waits for; one whose loop was closed waits no more."""
    with suppress(RuntimeError):
        if event.error is not None:
            future.set_exception(event.error)
        else:
            future.set_result(event.value)
