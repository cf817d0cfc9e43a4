"""Engine processes that dial a client in mode bind, and somebody to answer their handshake."""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from enginecore_client import AsyncMPClient, EngineCommand, SyncMPClient
from enginecore_client.testing._handshakes import Handshakes
from support.process import Process

__all__ = [
    "FREE",
    "Handshakes",
    "alive",
    "directories",
    "launched_stub",
    "pids",
    "stub_command",
    "stub_engine",
]

STUB = Path(__file__).with_name("stub_engine.py")
FREE = {"input_address": "tcp://127.0.0.1:0", "output_address": "tcp://127.0.0.1:0", "mode": "bind"}


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
