"""Engine processes of one client, their handshake and their coordinator, on one thread.

The thread starts every process, because the kernel ends a child with the thread that started
it; it answers the handshake as long as it lives, watches what it started, and ends it in
order: engines, then the coordinator, then its own sockets.
"""

import logging
import os
import shutil
import signal
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import zmq

from enginecore_client._coordinator import Coordinator, CoordinatorProcess
from enginecore_client._desk import Desk, HandshakeRefusedError, Stage
from enginecore_client._plan import LaunchListener, LaunchPlan
from enginecore_client._process import KILL_SECONDS, ChildProcess, end_all, ending_of
from enginecore_client.errors import AddressError, EngineCoreError, EngineStartupError
from enginecore_client.zmq_sockets import last_endpoint, make_zmq_socket
from enginecore_wire.coordination import CoordinatorAddresses
from enginecore_wire.handshake import EngineAddresses

_LOG = logging.getLogger("enginecore_client")

TURN_SECONDS: Final = 0.1
AGAIN_SECONDS: Final = 1.0
"""A coordinator is not started more often than this."""


class Launcher:
    """Starts engines once it knows where clients are; nothing happens before `start`.

    Args:
        plan: what to start.
        listener: told what becomes of them; it can be set later.

    Attributes:
        failure: why the start failed, None as long as it has not.
        coordinator: None where there is none, or while it is not known.
        addresses: what engines are told.
        handshake_address: where they ask, "" while it is not bound.
    """

    def __init__(self, plan: LaunchPlan, listener: LaunchListener | None = None) -> None:
        self.plan = plan
        self.listener = listener
        self.failure: EngineCoreError | None = None
        self.coordinator: Coordinator | None = None
        self.addresses: EngineAddresses | None = None
        self.handshake_address = ""
        self.on_change: Callable[[], None] = _nothing
        self._directory = tempfile.mkdtemp(prefix=f"enginecore-launch-{os.getpid()}-")
        self._remove = weakref.finalize(self, _remove, self._directory, os.getpid())
        self._known = threading.Event()
        self._children: dict[int, ChildProcess] = {}
        self._coordinator: CoordinatorProcess | None = None
        self._orders: deque[Callable[[], None]] = deque()
        self._kill_at: dict[int, float] = {}
        self._stopping = False
        self._wake_read, self._wake_write = -1, -1
        self._pipe = threading.RLock()
        self._thread = threading.Thread(target=self._run, name="enginecore-launcher", daemon=True)

    def path(self, name: str) -> str:
        """Return an address for a socket of this name: ipc if every engine is started here."""
        if self.plan.alone:
            return f"ipc://{self._directory}/{name}"
        host = self.plan.options.host
        return f"tcp://[{host}]:0" if ":" in host else f"tcp://{host}:0"

    def start(self, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        """Start everything; return at once. Item i of `inputs` and `outputs` is client i's."""
        self.addresses = EngineAddresses(list(inputs), list(outputs))
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
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
    def patience(self) -> float:
        """How many seconds it may take until everything has ended."""
        return self.plan.options.stop_seconds + 3 * KILL_SECONDS

    @property
    def running(self) -> bool:
        """Whether the thread runs, and so any process may."""
        return self._thread.is_alive()

    @property
    def pids(self) -> dict[int, int]:
        """Return the processes of engines that run, by rank."""
        return {rank: child.pid for rank, child in list(self._children.items())}

    def restart(self, rank: int) -> None:
        """End the process of a rank, if it runs, and start another one; return at once."""
        self._order(lambda: self._restart(rank))

    def lost(self, rank: int) -> None:
        """Take note that a client lost an engine; one from elsewhere may say HELLO again."""
        self._order(lambda: None if rank in self._children else self._desk.gone(rank))

    def close(self) -> None:
        """Begin to end everything; return at once. Idempotent, from any thread."""
        self._stopping = True
        self._wake()
        if self._thread.ident is None:
            self._remove()

    def join(self) -> None:
        """Wait until everything has ended, which `stop_seconds` bounds."""
        if self._thread.ident is not None and threading.current_thread() is not self._thread:
            self._thread.join(self.patience)

    def _order(self, order: Callable[[], None]) -> None:
        self._orders.append(order)
        self._wake()

    def _wake(self) -> None:
        with self._pipe:
            if self._wake_write >= 0:
                os.write(self._wake_write, b"w")

    def _run(self) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        try:
            self._open()
            while not self._stopping:
                self._turn()
        except AddressError as error:
            self._fail(error)
        finally:
            self._end()

    def _open(self) -> None:
        assert self.addresses is not None
        options, local = self.plan.options, self.plan.command.local
        host = f"[{options.host}]" if ":" in options.host else options.host
        self._handshake = make_zmq_socket(
            self._context, f"tcp://{host}:{options.handshake_port}", zmq.ROUTER, linger=0
        )
        self.handshake_address = last_endpoint(self._handshake)
        self._port = int(self.handshake_address.rpartition(":")[2])
        self._ranks = {rank: local and rank in self.plan.ranks for rank in self.plan.expected}
        self._desk = Desk(self._ranks, self.addresses, options.parallel_config)
        if self.plan.coordinated:
            wanted = (self.path(f"coordinator-{name}") for name in ("input", "output", "loads"))
            self._start_coordinator(CoordinatorAddresses(*wanted))
        else:
            self._start_engines()

    def _turn(self, timeout: float = TURN_SECONDS) -> None:
        """Wait for something to happen, at most `timeout` seconds, and handle it."""
        poller = zmq.Poller()
        poller.register(self._handshake, zmq.POLLIN)
        poller.register(self._wake_read, zmq.POLLIN)
        children = [*self._children.values()]
        if self._coordinator is not None:
            children.append(self._coordinator.child)
        for child in children:
            for descriptor in child.descriptors():
                poller.register(descriptor, zmq.POLLIN)
        poller.poll(round(timeout * 1000))
        self._take_orders()
        self._answer()
        for child in children:
            child.read()
        self._look_at_coordinator()
        self._look_at_engines()

    def _take_orders(self) -> None:
        try:
            while os.read(self._wake_read, 1024):
                pass
        except BlockingIOError:
            pass
        while self._orders and not self._stopping:
            self._orders.popleft()()

    def _answer(self) -> None:
        while self._known.is_set():  # engines from elsewhere wait for the coordinator, too
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
        _LOG.warning("handshake refused: %s", error.message)
        if error.rank is not None and self._desk.stages[error.rank] is Stage.NEW:
            self._fail(EngineStartupError(f"handshake refused: {error.message}", engine=error.rank))

    def _start_coordinator(self, wanted: CoordinatorAddresses) -> None:
        now = time.monotonic()
        self._coordinator = CoordinatorProcess(self.plan, wanted, now)
        self._coordinator_again_at = now + AGAIN_SECONDS

    def _look_at_coordinator(self) -> None:
        if self._coordinator is None:
            self._start_coordinator_again()
            return
        try:
            found = self._coordinator.look(time.monotonic())
        except EngineStartupError as error:
            _LOG.error("%s", error.message)
            if not self._known.is_set():
                self._fail(error)
            self._coordinator.child.signal(signal.SIGKILL)
            self._coordinator.child.close()
            self._coordinator = None
            return
        if found is not None:
            self._coordinated(found)

    def _start_coordinator_again(self) -> None:
        """Replace a coordinator that ended; its sockets find the new one by themselves."""
        if self.coordinator is not None and time.monotonic() >= self._coordinator_again_at:
            self._start_coordinator(self.coordinator.addresses)

    def _coordinated(self, found: Coordinator) -> None:
        """Take over where the coordinator is, and start what waited for that."""
        assert self.addresses is not None
        again = self.coordinator is not None
        self.coordinator = found
        if again:
            return
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
        plan = self.plan
        words = plan.command.words(plan.options.host, self._port, rank, plan.size)
        self._children[rank] = ChildProcess(words, plan.command.env, forward=True)
        self._stage(rank)

    def _stage(self, rank: int) -> None:
        if self.listener is not None:
            self.listener.staged(rank, self._desk.stages[rank])

    def _look_at_engines(self) -> None:
        now = time.monotonic()
        for rank, child in list(self._children.items()):
            status = child.poll()
            if status is not None:
                self._exited(rank, child, status)
            elif now > self._kill_at.get(rank, now):
                child.signal(signal.SIGKILL)

    def _exited(self, rank: int, child: ChildProcess, status: int) -> None:
        child.close()
        del self._children[rank]
        ending = ending_of(status)
        if self._desk.stages[rank] is not Stage.READY:
            stage = self._desk.stages[rank]
            text = f"the engine of rank {rank} {ending} before it was ready ({stage})"
            self._fail(EngineStartupError(f"{text}{child.last_words}", engine=rank))
        self._desk.gone(rank)
        if self.listener is not None:
            self.listener.exited(rank, ending)
        if self._kill_at.pop(rank, None) is not None and not self._stopping:
            self._start_engine(rank)

    def _restart(self, rank: int) -> None:
        child = self._children.get(rank)
        if child is None:
            self._start_engine(rank)
        elif rank not in self._kill_at:
            self._kill_at[rank] = time.monotonic() + self.plan.options.stop_seconds
            child.terminate()

    def _fail(self, error: EngineCoreError) -> None:
        if self.failure is None and not self._stopping:
            self.failure = error
            self._known.set()
            self.on_change()

    def _end(self) -> None:
        """End engines, the coordinator, and then what they are connected to."""
        end_all(list(self._children.values()), self.plan.options.stop_seconds)
        self._children.clear()
        if self._coordinator is not None:
            end_all([self._coordinator.child], self.plan.options.stop_seconds)
            self._coordinator = None
        self._context.destroy(linger=0)
        self._remove()
        with self._pipe:
            write, self._wake_write = self._wake_write, -1
        os.close(write)
        os.close(self._wake_read)
        self.on_change()


def _remove(directory: str, process: int) -> None:
    """Remove the sockets' directory, unless this is a fork of the process that made it."""
    if os.getpid() == process:
        shutil.rmtree(directory, ignore_errors=True)


def _nothing() -> None:
    """Nobody wants to know."""
