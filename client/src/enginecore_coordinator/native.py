"""The coordinator of engines that dial it, as vLLM's engines do.

`python -m enginecore_coordinator.native` binds three sockets, says on its first line of output
where (JSON), and runs until SIGTERM. Engines subscribe to one socket and push to the second;
clients subscribe to the third and send upstream on it.
"""

import argparse
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

import msgspec
import zmq

from enginecore_coordinator.loads import LoadBook, Pace, ReportRefusedError
from enginecore_coordinator.waves import Effect, WaveBook
from enginecore_wire.codec import MsgpackDecoder
from enginecore_wire.coordination import CoordinatorAddresses, FirstRequest, LoadReport
from enginecore_wire.outputs import EngineCoreOutputs, SchedulerStats
from enginecore_wire.requests import RequestType

logger = logging.getLogger("enginecore_coordinator")

READY: Final = b"READY"
"""What engines wait for before they say that they are ready."""

LAST_RANKS: Final = 65536
_Engines = Annotated[int, msgspec.Meta(ge=1, le=LAST_RANKS)]
TURN_SECONDS: Final = 0.5
BURST: Final = 256
_SUBSCRIBED: Final = b"\x01"
_UNSUBSCRIBED: Final = b"\x00"
_SCALE: Final = "SCALE_ELASTIC_EP"
_NEVER: Final = 1e9
_PACE: Final = Pace(silent=_NEVER, forgotten=_NEVER)
"""Engines report changes only: silence means that nothing changed."""


class NativeCoordinator:
    """Three sockets around the book of loads and the book of waves.

    Args:
        context: ZMQ context; stays the caller's.
        wanted: where to bind; a port may be 0 or `*`.
        engines: how many engines there are.
        lockstep: whether they step together.
        clock: monotonic seconds.

    Raises:
        zmq.ZMQError: an address cannot be bound; no socket stays open.
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        wanted: CoordinatorAddresses,
        engines: int,
        *,
        lockstep: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._waves = WaveBook(lockstep=lockstep)
        self._engines = 0
        self._loads = LoadBook(LAST_RANKS, clock(), _PACE)
        self._expect(engines)
        self._subscribed = 0
        self._ignored = 0
        self._open = False
        self._outputs = MsgpackDecoder(EngineCoreOutputs)
        self._upstream = MsgpackDecoder(list[Any])
        self._sockets: list[zmq.Socket[bytes]] = []
        try:
            self._back, back = self._bind(context, zmq.XPUB, wanted.input)
            self._reports, reports = self._bind(context, zmq.PULL, wanted.output)
            self._front, front = self._bind(context, zmq.XPUB, wanted.stats_publish)
        except zmq.ZMQError:
            self.close()
            raise
        self.addresses = CoordinatorAddresses(back, reports, front)
        self._poller = zmq.Poller()
        for socket in self._sockets:
            self._poller.register(socket, zmq.POLLIN)

    def close(self) -> None:
        """Close the sockets."""
        for socket in self._sockets:
            socket.close(0)

    def turn(self, timeout: float = TURN_SECONDS) -> None:
        """Wait for something to do, at most `timeout` seconds, and do it."""
        now = self._clock()
        wait = max(0.0, min(timeout, self._loads.due(now) - now))
        # poll() takes whole milliseconds: rounded down it would turn without end until due.
        self._poller.poll(int(wait * 1000) + (wait > 0))
        _drain(self._back, self._take_subscription)
        _drain(self._reports, self._take_report)
        _drain(self._front, self._take_upstream)
        report = self._loads.take(self._clock())
        if report is not None:
            self._publish(report.loads)

    def _take_subscription(self, frames: list[bytes]) -> None:
        if frames[0][:1] == _SUBSCRIBED:
            self._subscribed += 1
            if self._open or self._subscribed >= self._engines:
                self._open = True
                self._back.send(READY)
        elif frames[0][:1] == _UNSUBSCRIBED:
            self._subscribed -= 1
        if not self._open:
            logger.info("%d of %d engines are there", self._subscribed, self._engines)

    def _take_report(self, frames: list[bytes]) -> None:
        try:
            message = self._outputs.decode(frames[0], frames[1:])
        except (msgspec.DecodeError, ValueError) as error:
            self._ignore("message of an engine", error)
            return
        if message.scheduler_stats is not None:
            try:
                self._loads.report(message, self._clock())
            except ReportRefusedError as error:
                self._ignore("report of an engine", error)
        if message.wave_complete is not None:
            self._follow(self._waves.completed(message.wave_complete))
        if message.start_wave is not None:
            self._follow(self._waves.started(message.start_wave))

    def _take_upstream(self, frames: list[bytes]) -> None:
        body = frames[0]
        if body[:1] == _SUBSCRIBED:
            self._loads.subscribed()
        elif body[:1] != _UNSUBSCRIBED:
            try:
                items = self._upstream.decode(body)
                if items[:1] == [_SCALE]:
                    self._expect(msgspec.convert(items[1], _Engines))
                else:
                    request = msgspec.convert(items, FirstRequest)
                    self._follow(self._waves.first_request(request.wave))
            except (msgspec.DecodeError, LookupError) as error:
                self._ignore("message of a client", error)

    def _ignore(self, what: str, error: Exception) -> None:
        """Say that something was ignored, less and less often: a peer may send nothing else."""
        self._ignored += 1
        if self._ignored.bit_count() == 1:
            logger.warning("%s ignored, %d so far: %s", what, self._ignored, error)

    def _expect(self, engines: int) -> None:
        """Count on so many engines from now on; new ones are idle until they say otherwise."""
        now = self._clock()
        for rank in range(self._engines, engines):
            idle = EngineCoreOutputs(rank, scheduler_stats=SchedulerStats())
            self._loads.report(idle, now)
        self._engines = engines

    def _follow(self, effect: Effect) -> None:
        if effect.wake is not None:
            body = msgspec.msgpack.encode([effect.wake.wave, effect.wake.exclude])
            self._back.send_multipart([RequestType.START_DP_WAVE, body], zmq.NOBLOCK)
        if effect.publish:
            self._publish(None)

    def _publish(self, loads: Any) -> None:
        shown = None if loads is None else loads[: self._engines]
        report = LoadReport(shown, self._waves.wave, self._waves.running)
        self._front.send(msgspec.msgpack.encode(report), zmq.NOBLOCK)

    def _bind(
        self, context: "zmq.Context[zmq.Socket[bytes]]", kind: int, address: str
    ) -> "tuple[zmq.Socket[bytes], str]":
        socket = context.socket(kind)
        self._sockets.append(socket)
        socket.setsockopt(zmq.LINGER, 0)
        if kind == zmq.XPUB:
            socket.setsockopt(zmq.XPUB_VERBOSER, 1)
        if len(self._sockets) == 1:  # a wake-up must not be dropped; a publication is repeated
            socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.setsockopt(zmq.IPV6, int("[" in address))
        socket.bind(address)
        return socket, socket.getsockopt_string(zmq.LAST_ENDPOINT)


def _drain(socket: "zmq.Socket[bytes]", take: Callable[[list[bytes]], None]) -> None:
    """Read up to BURST messages."""
    for _ in range(BURST):
        try:
            frames = socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return
        take(frames)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options; a wrong one ends the process with status 2."""
    parser = argparse.ArgumentParser(
        prog="python -m enginecore_coordinator.native",
        description="Coordinates engines that dial it: their loads, and their waves.",
    )
    add = parser.add_argument
    add("--engines", type=int, required=True, metavar="N", help="how many engines there are")
    add("--lockstep", action="store_true", help="they step together, in waves")
    add("--input", default="tcp://127.0.0.1:*", metavar="ADDRESS", help="engines subscribe here")
    add("--output", default="tcp://127.0.0.1:*", metavar="ADDRESS", help="engines push here")
    add("--publish", default="tcp://127.0.0.1:*", metavar="ADDRESS", help="clients subscribe here")
    options = parser.parse_args(argv)
    if not 1 <= options.engines <= LAST_RANKS:
        parser.error(f"--engines {options.engines}: give a number from 1 to {LAST_RANKS}")
    return options


class _StopError(Exception):
    """SIGTERM or SIGINT came."""


def _stop(*_: object) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    raise _StopError


def main(argv: Sequence[str]) -> int:
    """Run the command line; returns the exit status."""
    logging.basicConfig(
        level=os.environ.get("LOG_LEVEL", "INFO").upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    options = parse(argv)
    wanted = CoordinatorAddresses(options.input, options.output, options.publish)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        coordinator = NativeCoordinator(context, wanted, options.engines, lockstep=options.lockstep)
    except zmq.ZMQError as error:
        logger.error("cannot bind %s: %s", ", ".join(msgspec.structs.astuple(wanted)), error)
        context.term()
        return 1
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    try:
        print(msgspec.json.encode(coordinator.addresses).decode(), flush=True)
        while True:
            coordinator.turn()
    except _StopError:
        return 0
    finally:
        coordinator.close()
        context.term()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
