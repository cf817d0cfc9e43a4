"""Who is told of what happened: metrics first, then whoever waits for it."""

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from enginecore_client._core.events import (
    CallEnded,
    Delivered,
    EngineDown,
    Event,
    LoadsMissed,
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

    def tell(self, events: Sequence[Event]) -> None:
        """Tell of events, in order."""
        for event in events:
            self._metrics.observe(event)
        for event in events:
            self._tell(event)

    def _tell(self, event: Event) -> None:
        match event:
            case Delivered():
                for record, output in zip(event.records, event.outputs, strict=True):
                    sink = record.sink
                    if sink is not None:
                        sink.put(output)
                if event.queued is not None:
                    self._inbox.put(event.queued)
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
