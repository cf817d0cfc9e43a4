"""One engine server: its parts put together, run, and taken down."""

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import time
from collections.abc import Mapping
from typing import Final

import zmq
from prometheus_client import CollectorRegistry

from enginecore_server import replies
from enginecore_server.child import ChildStartError, EngineChild, write_termination_message
from enginecore_server.command import engine_command, engine_environment
from enginecore_server.desk import ClientDesk
from enginecore_server.door import make_door
from enginecore_server.drain import Drain
from enginecore_server.endpoints import Endpoints
from enginecore_server.engine_link import EngineLink
from enginecore_server.exposed import ExposedSockets
from enginecore_server.hosts import resolve_listening
from enginecore_server.last_words import termination_message
from enginecore_server.load import (
    REPORT_ALWAYS_SECONDS,
    REPORT_SECONDS,
    STATS_SECONDS,
    Throttle,
)
from enginecore_server.metrics import ServerCollector
from enginecore_server.model_facts import ModelInputs
from enginecore_server.phases import ENDED, STARTING_UP
from enginecore_server.processes import become_subreaper
from enginecore_server.relay import OutputRelay
from enginecore_server.reports import CoordinatorKeys, CoordinatorReports
from enginecore_server.state import ServerState
from enginecore_server.status import Ports, server_status
from enginecore_server.supervisor import EngineSupervisor
from enginecore_wire.contract import DRAIN_TOKEN_ENV, ServerConfig, ServerStatus
from enginecore_wire.control import Phase
from enginecore_wire.outputs import ENGINE_CORE_DEAD

TICK_SECONDS: Final = 0.05
SWEEP_SECONDS: Final = 0.1
LINGER_SECONDS: Final = 2.0
ENGINE_STOP_SECONDS: Final = 10.0
DEAD_ENGINE_STOP_SECONDS: Final = 1.0

_log = logging.getLogger(__name__)


class EngineServer:
    """The engine server of one pod and epoch.

    Args:
        config: the settings.
        model: what requests are held to.
        environment: what the engine's environment is made from; holds the drain token.
        registry: where metrics are registered.

    Raises:
        BindError, LinkError, AddressError: an address of the settings cannot be used.
        KeyFileError: a key of the settings cannot be used.
    """

    def __init__(
        self,
        config: ServerConfig,
        model: ModelInputs,
        environment: Mapping[str, str],
        registry: CollectorRegistry,
    ) -> None:
        self._config = config
        self._environment = environment
        self._state = ServerState(config, model, secrets.randbits(63))
        self._stop = asyncio.Event()
        self._leaving = False
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        with contextlib.ExitStack() as undo:
            undo.callback(self._context.destroy, 0)
            self._supervisor = EngineSupervisor(self._state, self._announce, self._fail)
            self._link = EngineLink(
                self._context, config.transport.max_clients + 1, self._supervisor
            )
            undo.callback(self._link.close)
            self._door = make_door(self._context, config.transport)
            undo.callback(self._door.close)
            self._desk = ClientDesk(self._state, self._link, self._door.role_of)
            self._exposed = ExposedSockets(
                self._context,
                config.transport,
                config.limits.frame_bytes,
                self._desk,
                self._door.pair,
            )
            undo.callback(self._exposed.close, 0)
            self._reports = self._make_reports()
            undo.pop_all()
        self._desk.open(self._exposed)
        self._relay = OutputRelay(
            self._state, self._link, self._exposed, self._desk, self._supervisor.engine_said_dead
        )
        self._supervisor.attach(self._link, self._relay)
        self._drain = Drain(self._state, self._desk)
        self._child = EngineChild(self._supervisor.launcher_ended, self._supervisor.log_arrived)
        self._stats = Throttle(STATS_SECONDS, None)
        self._report = Throttle(REPORT_SECONDS, REPORT_ALWAYS_SECONDS)
        ServerCollector(self._state, registry)
        self._endpoints = Endpoints(
            self.status,
            lambda: self._drain.begin("the operator asked for it", time.monotonic()),
            registry,
            environment.get(DRAIN_TOKEN_ENV, ""),
        )
        self._http_port = 0
        self._swept = 0.0

    def _make_reports(self) -> CoordinatorReports | None:
        config, pair = self._config, self._door.pair
        if not config.coordinator_address:
            return None
        keys = None
        if pair is not None:
            keys = CoordinatorKeys(pair, config.coordinator_key, config.coordinator_keys_file)
        return CoordinatorReports(self._context, config.coordinator_address, config.rank, keys)

    def status(self) -> ServerStatus:
        """Return the status document."""
        ports = Ports(self._exposed.input_port, self._exposed.output_port, self._http_port)
        return server_status(self._state, ports, self._child.log.tail)

    async def run(self) -> int:
        """Serve until the engine dies or a signal asks to stop.

        Returns:
            The exit code: 0 after a stop that was asked for, 1 after the engine's death.

        Raises:
            BindError: the HTTP address cannot be used.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._asked_to_stop)
        try:
            transport = self._config.transport
            self._http_port = await self._endpoints.start(transport.host, transport.http_port)
            _log.info(
                "listening: input port %d, output port %d, http port %d",
                self._exposed.input_port,
                self._exposed.output_port,
                self._http_port,
            )
            self._start_engine()
            await self._serve()
        finally:
            await self._shut_down()
        return 0 if self._state.phases.phase is Phase.STOPPED else 1

    def _start_engine(self) -> None:
        become_subreaper()
        port = self._link.handshake_port
        try:
            self._child.start(
                engine_command(self._config, port), engine_environment(self._environment, port)
            )
        except ChildStartError as error:
            self._fail("EngineNotStarted", str(error))
            return
        if self._state.phases.enter(Phase.HANDSHAKING, "EngineStarted"):
            self._announce()

    async def _serve(self) -> None:
        while not self._stop.is_set():
            now = time.monotonic()
            self._tick(now)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), TICK_SECONDS)

    def _tick(self, now: float) -> None:
        self._supervisor.check(self._child, now)
        for session in self._state.book.expired(now, self._config.liveness.grace_seconds):
            self._state.tally.vanished_clients += 1
            self._desk.end_session(session, "its connections broke and did not return")
        if self._state.phases.accepts_clients:
            self._publish_load(now)
        self._drain.check(now)
        if self._leaving and self._drain.done:
            self._state.phases.enter(Phase.STOPPED, "Drained")
            self._stop.set()
        if now - self._swept >= SWEEP_SECONDS:
            self._swept = now
            self._link.poke()
            self._exposed.poke()
            if self._door.follow():
                self._desk.keys_changed()

    def _publish_load(self, now: float) -> None:
        stats = self._state.load.current(self._state.in_flight)
        if self._stats.due(stats, now):
            self._desk.tell_all(replies.stats(self._state, stats, now))
        if self._reports is not None and self._report.due(stats, now):
            self._reports.send(stats, self._state.load.timestamp(self._state.in_flight, now), now)

    def _asked_to_stop(self) -> None:
        if self._leaving:
            self._drain.hurry()
            return
        self._leaving = True
        if self._drain.begin("the pod is stopping", time.monotonic()):
            return
        if self._state.phases.enter(Phase.STOPPED, "Stopped"):
            self._announce()
            self._stop.set()

    def _announce(self) -> None:
        phases = self._state.phases
        _log.info("phase %s: %s", phases.phase, phases.message or phases.reason)
        if phases.phase in STARTING_UP or phases.phase in ENDED:
            self._desk.tell_all(replies.phase_change(self._state))
        else:
            for session in self._state.book.sessions():
                self._desk.welcome(session)

    def _fail(self, reason: str, message: str) -> None:
        """Tell every client that the engine is lost; the first reason counts."""
        cause = self._child.log.first_error
        if cause and self._state.phases.phase in STARTING_UP:
            message += f"; the first error in its log: {cause}"
        if not self._state.phases.enter(Phase.FAILED, reason, message):
            return
        _log.error("engine lost: %s: %s", reason, message)
        for session in self._state.book.sessions():
            self._exposed.send(session, [ENGINE_CORE_DEAD], engine_message=False)
        self._stop.set()

    async def _shut_down(self) -> None:
        failed = self._state.phases.phase is not Phase.STOPPED
        await self._flush()
        self._supervisor.close()
        self._door.close()
        self._exposed.close(LINGER_SECONDS)
        await self._child.stop(DEAD_ENGINE_STOP_SECONDS if failed else ENGINE_STOP_SECONDS)
        self._link.close()
        if self._reports is not None:
            await self._reports.close()
        await self._endpoints.stop()
        write_termination_message(termination_message(self.status()))
        await asyncio.to_thread(self._context.term)

    async def _flush(self) -> None:
        """Give clients that are behind a moment to take what waits for them."""
        for _ in range(round(LINGER_SECONDS / TICK_SECONDS)):
            sessions = self._state.book.sessions()
            if not any(session.backlog and session.connected for session in sessions):
                return
            await asyncio.sleep(TICK_SECONDS)


async def serve(config: ServerConfig, model: ModelInputs, registry: CollectorRegistry) -> int:
    """Run a server with this process's environment; return its exit code.

    Raises:
        BindError, LinkError, AddressError: an address of the settings cannot be used.
        KeyFileError: a key of the settings cannot be used.
    """
    listening = resolve_listening(config)
    return await EngineServer(listening, model, os.environ, registry).run()
