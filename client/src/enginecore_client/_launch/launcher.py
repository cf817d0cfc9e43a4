"""Engine processes of one client, their handshake and their coordinator, on one thread.

The thread starts every process, because the kernel ends a child with the thread that started
it; it answers the handshake as long as it lives, watches what it started, and ends it in
order: engines, then the coordinator, then its own sockets.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import zmq

from enginecore_client._launch.coordinator import Coordinator, CoordinatorKeeper
from enginecore_client._launch.desk import Desk, HandshakeRefusedError, Stage
from enginecore_client._launch.engine_processes import EngineProcesses, Exit
from enginecore_client._launch.orders import Orders
from enginecore_client._launch.plan import LaunchListener, LaunchPlan
from enginecore_client._launch.process import KILL_SECONDS, ChildProcess
from enginecore_client._launch.socket_directory import SocketDirectory
from enginecore_client.errors import (
    AddressError,
    ClientClosedError,
    EngineCoreError,
    EngineStartupError,
    RequestRejectedError,
)
from enginecore_client.zmq_sockets import last_endpoint, make_zmq_socket
from enginecore_wire.coordination import CoordinatorAddresses
from enginecore_wire.handshake import EngineAddresses

_LOG = logging.getLogger("enginecore_client")

TURN_SECONDS: Final = 0.1
BURST: Final = 256
"""Most handshake messages of one turn, so that nobody can keep the thread from the rest."""

MOST_REFUSALS: Final = 64
"""How many different refusals are logged: anybody may knock."""


class Launcher:
    """Starts engines once it knows where clients are; nothing happens before `start`.

    Args:
        plan: what to start.
        listener: told what becomes of them; it can be set later.

    Attributes:
        failure: why the start failed, None as long as it has not.
        addresses: what engines are told.
        handshake_address: where they ask, "" while it is not bound.
        stop_seconds: from SIGTERM to SIGKILL when everything is ended.
    """

    def __init__(self, plan: LaunchPlan, listener: LaunchListener | None = None) -> None:
        self.plan = plan
        self.listener = listener
        self.failure: EngineCoreError | None = None
        self.addresses: EngineAddresses | None = None
        self.handshake_address = ""
        self.stop_seconds = plan.options.stop_seconds
        self.on_change: Callable[[], None] = _nothing
        self._directory = SocketDirectory()
        self._known = threading.Event()
        self._engines = EngineProcesses(self._process_of, plan.options.stop_seconds)
        self._coordinator = CoordinatorKeeper(plan)
        self._orders = Orders()
        self._refused: set[str] = set()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="enginecore-launcher", daemon=True)

    def path(self, name: str) -> str:
        """Return an address for a socket of this name: ipc if every engine is started here."""
        if self.plan.alone:
            return f"ipc://{self._directory.path}/{name}"
        return self.plan.tcp(0)

    def start(self, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        """Start everything; return at once. Item i of `inputs` and `outputs` is client i's."""
        self.addresses = EngineAddresses(list(inputs), list(outputs))
        self._orders.open()
        self._thread.start()

    def wait_addresses(self, timeout: float) -> EngineAddresses:
        """Return what engines are told, coordinator included, once that is known.

        Raises:
            EngineStartupError: it will never be known, or not in `timeout` seconds.
        """
        self._known.wait(timeout)
        if self.failure is not None:
            raise self.failure
        if not self._known.is_set() or self.addresses is None:
            raise EngineStartupError(f"the coordinator did not start within {timeout:g} s")
        return self.addresses

    @property
    def coordinator(self) -> Coordinator | None:
        """Return the coordinator; None where there is none, or while it is not known."""
        return self._coordinator.known

    @property
    def patience(self) -> float:
        """How many seconds it may take until everything has ended."""
        return self.stop_seconds + 3 * KILL_SECONDS

    @property
    def running(self) -> bool:
        """Whether the thread runs, and so any process may."""
        return self._thread.is_alive()

    @property
    def pids(self) -> dict[int, int]:
        """Return the processes of engines that run, by rank."""
        return self._engines.pids

    def restart(self, rank: int) -> None:
        """End the process of a rank, if it runs, and start another one; return at once.

        Raises:
            RequestRejectedError: no engine of that rank is started here.
            ClientClosedError: nothing is started here (yet, or any more, or in this fork).
        """
        if type(rank) is not int or rank not in self.plan.ranks:
            here = ", ".join(map(str, self.plan.ranks))
            text = f"rank: got {rank!r}, allowed: {here}, the ranks that are started here"
            raise RequestRejectedError(text, field="rank")
        if self._stopping or not self.running:
            raise ClientClosedError("no engines run here: closed, not started yet, or a fork")
        self._orders.put(lambda: self._restart(rank))

    def lost(self, rank: int) -> None:
        """Take note that a client lost an engine; one from elsewhere may say HELLO again."""
        self._orders.put(lambda: None if rank in self._engines else self._desk.gone(rank))

    def close(self) -> None:
        """Begin to end everything; return at once. Idempotent, from any thread."""
        self._stopping = True
        self._orders.wake()
        if self._thread.ident is None:
            self._directory.remove()

    def join(self) -> None:
        """Wait until everything has ended, which `stop_seconds` bounds."""
        if self._thread.ident is not None and threading.current_thread() is not self._thread:
            self._thread.join(self.patience)

    def _run(self) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        try:
            self._open()
            while not self._stopping:
                self._turn()
        except (AddressError, EngineStartupError) as error:
            _LOG.error("%s", error.message)
            self._fail(error)
        except Exception as error:  # noqa: BLE001 - nobody else would tell those who wait
            _LOG.error("engines cannot be started or watched any more", exc_info=error)
            self._fail(EngineStartupError(f"engines cannot be started: {error!r}"))
        finally:
            self._end()

    def _open(self) -> None:
        assert self.addresses is not None
        options, local = self.plan.options, self.plan.command.local
        wanted = self.plan.tcp(options.handshake_port)
        self._handshake = make_zmq_socket(self._context, wanted, zmq.ROUTER, linger=0)
        self.handshake_address = last_endpoint(self._handshake)
        self._port = int(self.handshake_address.rpartition(":")[2])
        self._ranks = {rank: local and rank in self.plan.ranks for rank in self.plan.expected}
        self._desk = Desk(self._ranks, self.addresses, options.parallel_config)
        if self.plan.coordinated:
            paths = (self.path(f"coordinator-{name}") for name in ("input", "output", "loads"))
            self._coordinator.start(CoordinatorAddresses(*paths), time.monotonic())
        else:
            self._start_engines()

    def _turn(self) -> None:
        """Wait for something to happen, at most TURN_SECONDS, and handle it."""
        poller = zmq.Poller()
        if self._known.is_set():
            poller.register(self._handshake, zmq.POLLIN)
        poller.register(self._orders.fileno(), zmq.POLLIN)
        children = self._engines.children + self._coordinator.children
        for child in children:
            for descriptor in child.descriptors():
                poller.register(descriptor, zmq.POLLIN)
        poller.poll(round(TURN_SECONDS * 1000))
        for order in self._orders.take():
            if not self._stopping:
                order()
        self._answer()
        for child in children:
            child.read()
        found = self._coordinator.look(time.monotonic())
        if found is not None and not self._known.is_set():
            self._coordinated(found)
        for end in self._engines.ended():
            self._exited(end)

    def _answer(self) -> None:
        if not self._known.is_set():
            return  # engines from elsewhere wait for the coordinator, too
        for _ in range(BURST):
            try:
                frames = self._handshake.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                rank, answer = self._desk.receive(frames[0], frames[-1])
            except HandshakeRefusedError as error:
                self._refuse(error)
                continue
            if answer is not None:
                self._handshake.send_multipart([frames[0], answer], zmq.NOBLOCK)
                self._stage(rank)
            self.on_change()

    def _refuse(self, error: HandshakeRefusedError) -> None:
        if error.message not in self._refused and len(self._refused) < MOST_REFUSALS:
            self._refused.add(error.message)
            _LOG.warning("handshake refused: %s", error.message)
        if error.rank is not None and self._desk.stages[error.rank] is Stage.NEW:
            self._fail(EngineStartupError(f"handshake refused: {error.message}", engine=error.rank))

    def _coordinated(self, found: Coordinator) -> None:
        """Take over where the coordinator is, and start what waited for that."""
        assert self.addresses is not None
        self.addresses = msgspec.structs.replace(
            self.addresses,
            coordinator_input=found.addresses.input,
            coordinator_output=found.addresses.output,
            frontend_stats_publish_address=found.addresses.stats_publish,
        )
        self._desk = Desk(self._ranks, self.addresses, self.plan.options.parallel_config)
        self._start_engines()

    def _start_engines(self) -> None:
        for rank in self.plan.ranks:
            self._start_engine(rank)
        self._known.set()
        self.on_change()

    def _start_engine(self, rank: int) -> None:
        self._engines.start(rank)
        self._stage(rank)

    def _process_of(self, rank: int) -> ChildProcess:
        plan = self.plan
        words = plan.command.words(plan.options.host, self._port, rank, plan.size)
        return ChildProcess(words, plan.command.env, forward=True)

    def _stage(self, rank: int) -> None:
        if self.listener is not None:
            self.listener.staged(rank, self._desk.stages[rank])

    def _exited(self, end: Exit) -> None:
        stage = self._desk.stages[end.rank]
        if stage is not Stage.READY and not end.asked:
            text = f"the engine of rank {end.rank} {end.ending} before it was ready ({stage})"
            self._fail(EngineStartupError(f"{text}{end.last_words}", engine=end.rank))
        self._desk.gone(end.rank)
        if self.listener is not None:
            self.listener.exited(end.rank, end.ending)
        if end.asked and not self._stopping:
            self._start_again(end.rank)

    def _restart(self, rank: int) -> None:
        if rank in self._engines:
            self._engines.stop(rank)
        elif self._known.is_set():  # otherwise it is about to be started
            self._start_again(rank)

    def _start_again(self, rank: int) -> None:
        try:
            self._start_engine(rank)
        except OSError as error:  # the other engines run on
            _LOG.error("the engine of rank %s cannot be started again: %s", rank, error)

    def _fail(self, error: EngineCoreError) -> None:
        if self.failure is None and not self._stopping:
            self.failure = error
            self._known.set()
            self.on_change()

    def _end(self) -> None:
        """End engines, the coordinator, and then what they are connected to."""
        self._engines.end_all(self.stop_seconds)
        self._coordinator.end(self.stop_seconds)
        self._context.destroy(linger=0)
        self._directory.remove()
        self._orders.close()
        self.on_change()


def _nothing() -> None:
    """Nobody wants to know."""
