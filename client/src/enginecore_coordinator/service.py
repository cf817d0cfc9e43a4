"""The coordinator's two sockets on one event loop."""

import asyncio
import logging
from collections.abc import Callable

import msgspec
import zmq

from enginecore_coordinator.addresses import resolve_listening
from enginecore_coordinator.guard import LOADS, REPORTS
from enginecore_coordinator.loads import LoadBook, RefusalReason, ReportRefusedError
from enginecore_coordinator.metrics import CoordinatorMetrics
from enginecore_curve.keys import KeyPair, serve_curve
from enginecore_wire.codec import MsgpackDecoder
from enginecore_wire.coordination import FirstRequest
from enginecore_wire.handshake import engine_rank
from enginecore_wire.outputs import EngineCoreOutputs

logger = logging.getLogger(__name__)

MESSAGE_BYTES = 64 * 1024
BURST = 64
SWEEP_SECONDS = 0.1

_OPTIONS = {
    zmq.LINGER: 0,
    zmq.BACKLOG: 1024,
    zmq.MAXMSGSIZE: MESSAGE_BYTES,
    zmq.HANDSHAKE_IVL: 2000,
    zmq.HEARTBEAT_IVL: 1000,
    zmq.HEARTBEAT_TIMEOUT: 2500,
    zmq.HEARTBEAT_TTL: 3500,
}


class Coordinator:
    """Reads reports (PULL), keeps the book, publishes it (XPUB). Made and used on one event loop.

    The sockets' descriptors are edge-triggered: a drain that stops early, and every send, may hide
    a message, hence the look at EVENTS after a send and the sweep.

    Args:
        book: the book of loads, on the event loop's clock.
        metrics: counters.
        context: ZMQ context; stays the caller's.
        report_address: where engine servers push, `tcp://host:port`; port `*` takes a free one,
            a name is resolved now.
        publish_address: where clients subscribe, likewise.
        pair: keys for both sockets; a ZAP handler must be there already. None without CURVE.

    Raises:
        zmq.ZMQError, OSError: an address cannot be bound or its name does not resolve; no socket
            stays open.
    """

    def __init__(
        self,
        book: LoadBook,
        metrics: CoordinatorMetrics,
        context: "zmq.Context[zmq.Socket[bytes]]",
        report_address: str,
        publish_address: str,
        pair: KeyPair | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._book = book
        self._metrics = metrics
        self._reports = MsgpackDecoder(EngineCoreOutputs)
        self._first_requests = MsgpackDecoder(FirstRequest)
        self._pull = context.socket(zmq.PULL)
        self._publisher = context.socket(zmq.XPUB)
        self._publisher.setsockopt(zmq.XPUB_VERBOSE, 1)
        if pair is not None:
            serve_curve(self._pull, pair, REPORTS)
            serve_curve(self._publisher, pair, LOADS)
        try:
            self.report_address = _bind(self._pull, report_address)
            self.publish_address = _bind(self._publisher, publish_address)
        except (zmq.ZMQError, OSError):
            self._close_sockets()
            raise
        self._loop.add_reader(self._pull.fileno(), self._drain_reports)
        self._loop.add_reader(self._publisher.fileno(), self._drain_subscribers)
        self._sweeper = self._loop.call_later(SWEEP_SECONDS, self._sweep)
        self._timer = self._loop.call_at(self._book.due(self._loop.time()), self._publish_when_due)

    def close(self) -> None:
        """Stop and close both sockets; a second call does nothing."""
        if self._pull.closed:
            return
        self._sweeper.cancel()
        self._timer.cancel()
        self._loop.remove_reader(self._pull.fileno())
        self._loop.remove_reader(self._publisher.fileno())
        self._close_sockets()

    def _close_sockets(self) -> None:
        self._pull.close(linger=0)
        self._publisher.close(linger=0)

    def _sweep(self) -> None:
        self._sweeper = self._loop.call_later(SWEEP_SECONDS, self._sweep)
        self._drain_reports()
        self._drain_subscribers()

    def _drain_reports(self) -> None:
        if self._drain(self._pull, self._take_report, self._drain_reports):
            self._hasten()

    def _drain_subscribers(self) -> None:
        if self._drain(self._publisher, self._take_upstream, self._drain_subscribers):
            self._hasten()

    def _drain(
        self,
        socket: "zmq.Socket[bytes]",
        take: Callable[[list[bytes]], None],
        again: Callable[[], None],
    ) -> bool:
        """Read up to BURST messages; more of them are read after other work had its turn."""
        if socket.closed:
            return False
        for count in range(BURST):
            try:
                frames = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return count > 0
            take(frames)
        self._loop.call_soon(again)
        return True

    def _take_report(self, frames: list[bytes]) -> None:
        try:
            message = self._decode(frames)
            self._book.report(message, self._loop.time())
        except ReportRefusedError as error:
            self._metrics.refused.labels(error.reason).inc()
            logger.debug("report ignored: %s", error)
        else:
            self._metrics.reports.inc()

    def _decode(self, frames: list[bytes]) -> EngineCoreOutputs:
        try:
            return self._reports.decode(frames[0], frames[1:])
        except (msgspec.DecodeError, ValueError) as error:
            raise ReportRefusedError(RefusalReason.NOT_A_REPORT, str(error)) from error

    def _take_upstream(self, frames: list[bytes]) -> None:
        body = frames[0]
        if body[:1] == b"\x01":
            self._metrics.subscriptions.inc()
            self._book.subscribed()
        elif body[:1] != b"\x00":
            self._take_first_request(body)

    def _take_first_request(self, body: bytes) -> None:
        try:
            exclude = self._first_requests.decode(body).exclude
        except msgspec.DecodeError as error:
            self._metrics.unknown_messages.inc()
            logger.debug("message of a client ignored: %s", error)
            return
        if isinstance(exclude, bytes) and engine_rank(exclude) is None:
            self._metrics.unknown_messages.inc()
        else:
            self._metrics.first_requests.inc()

    def _hasten(self) -> None:
        """Bring the timer forward if what came in asks for it; cheap, as reports come often."""
        if self._book.hastened(self._timer.when()):
            self._timer.cancel()
            self._publish_when_due()

    def _publish_when_due(self) -> None:
        """Publish if it is time, and set the timer for the next time."""
        report = self._book.take(self._loop.time())
        if report is not None:
            self._publish(msgspec.msgpack.encode(report))
        self._timer = self._loop.call_at(self._book.due(self._loop.time()), self._publish_when_due)

    def _publish(self, body: bytes) -> None:
        # XPUB drops for a subscriber that is full and never waits.
        self._publisher.send(body, zmq.NOBLOCK)
        self._metrics.publications.inc()
        if int(self._publisher.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            self._loop.call_soon(self._drain_subscribers)


def _bind(socket: "zmq.Socket[bytes]", address: str) -> str:
    """Bind and return the address with the port taken."""
    address = resolve_listening(address)
    for option, value in _OPTIONS.items():
        socket.setsockopt(option, value)
    # With IPV6 on, an IPv4 address would be reported as a mapped one, which IPv4 peers cannot dial.
    socket.setsockopt(zmq.IPV6, int("*:" in address or "[" in address))
    socket.bind(address)
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)
