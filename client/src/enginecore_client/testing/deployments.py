"""Engines that run somewhere, one class for each way of reaching them, and clients of them."""

import os
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final, Protocol

from enginecore_client import (
    AsyncMPClient,
    ClientAddresses,
    DPLBAsyncMPClient,
    InprocClient,
    NativeOptions,
    SyncMPClient,
)
from enginecore_client.testing._handshakes import Handshakes
from enginecore_client.testing._pod import Pod, client_addresses, descendants
from enginecore_client.testing._process import Process
from enginecore_client.testing.cells import ASYNC, BALANCED, INPROC, SYNC, Cell, Way
from enginecore_client.testing.engines import MODEL_NAME, EngineUnderTest
from enginecore_client.testing.faces import AsyncFace, Face, InprocFace, SyncFace

MakeFace = Callable[..., Face]
Makes = Mapping[str, Callable[..., Any]]

CLIENT_CLASSES: Final[Makes] = {
    INPROC: InprocClient,
    SYNC: SyncMPClient,
    ASYNC: AsyncMPClient,
    BALANCED: DPLBAsyncMPClient,
}
"""What makes the client of each row of the table."""

LOOPBACK: Final = "127.0.0.1"

_FACES: Final[Mapping[str, MakeFace]] = {
    INPROC: InprocFace,
    SYNC: SyncFace,
    ASYNC: AsyncFace,
    BALANCED: AsyncFace,
}


class Deployment(Protocol):
    """Running engines."""

    def connect(self, client: str, **options: Any) -> Face:
        """Return a new client of them, connected; whoever asked closes it.

        Args:
            client: which row of the table.
            options: of the client.
        """

    def processes(self, rank: int) -> list[int]:
        """Return the processes of an engine that run, parents before children."""

    def terminate(self, rank: int) -> None:
        """Send SIGTERM to whoever an administrator would send it to."""

    def close(self) -> None:
        """End the engines that are not a client's own."""


class InProcess:
    """Engines that are made for their client."""

    def __init__(self, engine: EngineUnderTest, makes: Makes) -> None:
        self._engine = engine
        self._makes = makes

    def connect(self, client: str, **options: Any) -> Face:
        """Make an engine and its client; see Deployment."""
        assert self._engine.make_core is not None
        given = {"model_name": MODEL_NAME} | options
        return _FACES[client](self._engine.make_core, self._makes[client], **given)

    def processes(self, rank: int) -> list[int]:  # noqa: ARG002 - there are none
        """Return none."""
        return []

    def terminate(self, rank: int) -> None:
        """Refuse: the process is this one."""
        raise NotImplementedError(f"engine {rank} is in this process")

    def close(self) -> None:
        """Do nothing: engines end with their clients."""


class Connected:
    """An engine server for each engine.

    Args:
        engine: what is behind them.
        ranks: how many there are.
        makes: makes clients.
        ready: whether to wait until they are.
    """

    def __init__(
        self, engine: EngineUnderTest, ranks: int, makes: Makes, *, ready: bool = True
    ) -> None:
        self._makes = makes
        self._stack = ExitStack()
        try:
            self.pods = [
                self._stack.enter_context(Pod(engine.server_config(rank))) for rank in range(ranks)
            ]
            for pod in self.pods if ready else ():
                pod.wait_ready(engine.start_seconds)
        except BaseException:
            self._stack.close()
            raise

    def connect(self, client: str, **options: Any) -> Face:
        """Connect a client; see Deployment."""
        addresses = client_addresses(self.pods)
        return _FACES[client](addresses, self._makes[client], **balanced(client), **options)

    def processes(self, rank: int) -> list[int]:
        """Return the engine's processes, without its server."""
        return self.pods[rank].engine_processes()

    def terminate(self, rank: int) -> None:
        """Send SIGTERM to the engine server, as a kubelet does."""
        self.pods[rank].terminate()

    def close(self) -> None:
        """End servers and engines."""
        self._stack.close()


class Bound:
    """Engines that somebody starts who is not their client.

    Args:
        engine: what is started.
        ranks: how many.
        makes: makes clients.
        clients: who will connect, each once: engines are told when they start.
    """

    def __init__(
        self, engine: EngineUnderTest, ranks: int, makes: Makes, clients: Sequence[str]
    ) -> None:
        assert engine.command is not None
        self._engine = engine
        self._ranks = ranks
        self._makes = makes
        self._clients = list(clients)
        self._stack = ExitStack()
        directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="contract-")))
        self._inputs, self._outputs = (
            [f"ipc://{directory}/{name}-{index}" for index in range(len(clients))]
            for name in ("input", "output")
        )
        everybody = ClientAddresses(tuple(self._inputs), tuple(self._outputs))
        try:
            desk = self._stack.enter_context(Handshakes(everybody))
            self._processes = [self._start(desk.port, rank) for rank in range(ranks)]
        except BaseException:
            self._stack.close()
            raise

    def connect(self, client: str, **options: Any) -> Face:
        """Bind a client's addresses, and wait for the engines; see Deployment."""
        index = self._clients.index(client)
        addresses = {
            "input_address": self._inputs[index],
            "output_address": self._outputs[index],
            "mode": "bind",
        }
        given = {
            "client_count": len(self._clients),
            "client_index": index,
            "ready_timeout": self._engine.start_seconds,
        }
        given |= native(self._engine) | balanced(client) | options
        return _FACES[client](
            addresses, self._makes[client], data_parallel_size=self._ranks, **given
        )

    def processes(self, rank: int) -> list[int]:
        """Return the engine's processes."""
        pid = self._processes[rank].process.pid
        return [pid, *descendants(pid)]

    def terminate(self, rank: int) -> None:
        """Send SIGTERM to the engine."""
        self._processes[rank].process.terminate()

    def close(self) -> None:
        """End the engines."""
        for rank in range(self._ranks):
            self.terminate(rank)
        self._stack.close()

    def _start(self, port: int, rank: int) -> Process:
        command = self._engine.command
        assert command is not None
        words = command.words(LOOPBACK, port, rank, self._ranks)
        return self._stack.enter_context(Process(words, f"engine {rank} log", command.env))


class Launched:
    """Engines that each client starts for itself."""

    def __init__(self, engine: EngineUnderTest, ranks: int, makes: Makes) -> None:
        self._engine = engine
        self._ranks = ranks
        self._makes = makes
        self._client: Any = None

    def connect(self, client: str, **options: Any) -> Face:
        """Start engines and their client; see Deployment. The last one's are `processes`."""
        given = {
            "engine_command": self._engine.command,
            "data_parallel_size": self._ranks,
            "ready_timeout": self._engine.start_seconds,
        }
        given |= native(self._engine) | balanced(client) | options
        face = _FACES[client](None, self._makes[client], **given)
        self._client = face.client
        return face

    def processes(self, rank: int) -> list[int]:
        """Return the engine's processes."""
        pid = self._client.engine_manager.pids.get(rank)
        return [] if pid is None else [pid, *descendants(pid)]

    def terminate(self, rank: int) -> None:
        """Send SIGTERM to the engine."""
        os.kill(self.processes(rank)[0], signal.SIGTERM)

    def close(self) -> None:
        """Do nothing: engines end with their clients."""


def deploy(
    engine: EngineUnderTest,
    cell: Cell,
    makes: Makes = CLIENT_CLASSES,
    *,
    clients: Sequence[str] = (),
    ready: bool = True,
) -> Deployment:
    """Return running engines.

    Args:
        engine: which.
        cell: how many, and how clients will reach them.
        makes: makes clients.
        clients: who will connect; by default the cell's client alone.
        ready: whether to wait until the engines are ready, where no client waits for them.
    """
    match cell.way:
        case Way.IN_PROCESS:
            return InProcess(engine, makes)
        case Way.CONNECT:
            return Connected(engine, cell.ranks, makes, ready=ready)
        case Way.BIND:
            return Bound(engine, cell.ranks, makes, clients or [cell.client])
        case Way.LAUNCH:
            return Launched(engine, cell.ranks, makes)


def kill(pids: Sequence[int]) -> None:
    """Kill processes, children first, so that none sees another one's end."""
    for pid in reversed(pids):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def native(engine: EngineUnderTest) -> dict[str, Any]:
    """Return what a client without an engine server has to be told."""
    return {"native": NativeOptions(vocab_size=engine.vocab_size, model_name=MODEL_NAME)}


def balanced(client: str) -> dict[str, Any]:
    """Return what the balancing client has to be told: engines here are independent."""
    return {"lockstep": False} if client == BALANCED else {}
