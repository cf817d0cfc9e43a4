"""Engine processes that dial a client in mode bind, and somebody to answer their handshake."""

import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import zmq

from enginecore_client import AsyncMPClient, ClientAddresses, EngineCommand, SyncMPClient
from enginecore_wire.handshake import HELLO, EngineAddresses, EngineInit, EngineStatus
from support.process import Process

STUB = Path(__file__).with_name("stub_engine.py")
FREE = {"input_address": "tcp://127.0.0.1:0", "output_address": "tcp://127.0.0.1:0", "mode": "bind"}


class Handshakes:
    """Answers every HELLO on loopback with a client's addresses; a context manager."""

    def __init__(self, addresses: ClientAddresses) -> None:
        self.statuses: list[tuple[bytes, str]] = []
        init = EngineInit(
            EngineAddresses(list(addresses.input_address), list(addresses.output_address))
        )
        self._init = msgspec.msgpack.encode(init)
        self._context: zmq.Context[Any] = zmq.Context()
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind("tcp://127.0.0.1:0")
        self.port = int(self._socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])
        self._thread = threading.Thread(target=self._run, name="handshakes")
        self._thread.start()

    def __enter__(self) -> "Handshakes":
        return self

    def __exit__(self, *exc: object) -> None:
        self._context.term()  # ends the thread, which closes its socket
        self._thread.join()

    def _run(self) -> None:
        try:
            while True:
                identity, body = self._socket.recv_multipart()
                status = msgspec.msgpack.decode(body, type=EngineStatus).status
                self.statuses.append((identity, status))
                if status == HELLO:
                    self._socket.send_multipart([identity, self._init])
        except zmq.ContextTerminated:
            self._socket.close(0)


def stub_engine(port: int, rank: int = 0, *options: str) -> Process:
    """Start a stub engine of a rank; `port` is the handshake's on loopback."""
    return Process(stub_command(port, rank, *options), f"stub engine {rank} log")


def stub_command(port: int | str, rank: int | str, *options: str) -> Sequence[str]:
    """Return the command line of a stub engine."""
    return [
        sys.executable, str(STUB), "--data-parallel-rpc-port", str(port), "--rank", str(rank),
        *options,
    ]  # fmt: skip


def launched_stub(*options: str) -> EngineCommand:
    """Return the command by which a client starts stub engines."""
    return EngineCommand(tuple(stub_command("{port}", "{rank}", "--local", *options)), local=True)


def pids(client: SyncMPClient | AsyncMPClient) -> dict[int, int]:
    """Return the processes of the engines that a client started."""
    assert client.engine_manager is not None
    return client.engine_manager.pids


def directories(pid: int) -> list[Path]:
    """Return the directories of sockets that a process has for engines it started."""
    return [*Path(tempfile.gettempdir()).glob(f"enginecore-launch-{pid}-*")]


def alive(pid: int) -> bool:
    """Say whether a process runs or waits to be reaped."""
    return Path(f"/proc/{pid}").exists()
