"""An EngineCore pod as processes on this host: a real engine server and its engine."""

import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from enginecore_client.testing._waiting import eventually
from enginecore_wire.contract import (
    DRAIN_PATH,
    DRAIN_TOKEN_ENV,
    METRICS_PATH,
    STATUS_PATH,
    LivenessConfig,
    ServerConfig,
    ServerStatus,
    TransportConfig,
)

DRAIN_TOKEN = "the operator's token"  # noqa: S105 - nobody else's
START_SECONDS = 60.0
LISTENING = re.compile(r"listening: input port (\d+), output port (\d+), http port (\d+)")

LOOPBACK = TransportConfig(host="127.0.0.1", input_port=0, output_port=0, http_port=0)
QUICK = LivenessConfig(grace_seconds=1.0)


class Pod:
    """One engine server process; a context manager that leaves no process behind.

    Args:
        config: the server's settings; ports 0 take free ones.
        program: what starts the server; the installed package unless another is named.
        host: the IP address at which it can be reached.
        environment: variables beside those of this process.
    """

    def __init__(
        self,
        config: ServerConfig,
        *,
        program: Sequence[str] = (sys.executable, "-m", "enginecore_server"),
        host: str = "127.0.0.1",
        **environment: str,
    ) -> None:
        self.config = config
        self._host = host
        self.log: list[str] = []
        self._directory = tempfile.TemporaryDirectory(prefix="pod-")
        file = Path(self._directory.name) / "config.json"
        file.write_bytes(msgspec.json.encode(config))
        self.process = subprocess.Popen(
            [*program, "--config", str(file)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | environment | {DRAIN_TOKEN_ENV: DRAIN_TOKEN},
            start_new_session=True,
        )
        self._ports: queue.SimpleQueue[tuple[int, ...] | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read_log, name="pod log")
        self._reader.start()
        try:
            ports = self._ports.get(timeout=START_SECONDS)
            assert ports is not None, self.tail()
        except BaseException:
            self.close()
            raise
        self.input_port, self.output_port, self.http_port = ports

    @property
    def input_address(self) -> str:
        """Where requests go."""
        return f"tcp://{self._host}:{self.input_port}"

    @property
    def output_address(self) -> str:
        """Where outputs come from."""
        return f"tcp://{self._host}:{self.output_port}"

    def status(self) -> ServerStatus:
        """Return the status document."""
        return msgspec.json.decode(self.get(STATUS_PATH), type=ServerStatus)

    def metrics(self) -> str:
        """Return what Prometheus would scrape."""
        return self.get(METRICS_PATH)

    def get(self, path: str) -> str:
        """Return the body of a page of the server."""
        url = f"http://{self._host}:{self.http_port}{path}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return str(answer.read().decode())

    def drain(self) -> None:
        """Ask the server to drain, as the operator does."""
        request = urllib.request.Request(
            f"http://{self._host}:{self.http_port}{DRAIN_PATH}",
            method="POST",
            headers={"Authorization": f"Bearer {DRAIN_TOKEN}"},
        )
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - loopback
            assert answer.status == 202

    def wait_ready(self, seconds: float = START_SECONDS) -> "Pod":
        """Return once the engine is ready."""

        def ready() -> bool:
            assert self.process.poll() is None, self.tail()
            return self.status().phase == "Ready"

        eventually(ready, "engine ready", deadline=seconds)
        return self

    def engine_processes(self) -> list[int]:
        """Return the pids below the server, parents before children."""
        return descendants(self.process.pid)

    def terminate(self) -> None:
        """Send SIGTERM, as the kubelet does."""
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the whole pod at once, as when its node dies."""
        below = self.engine_processes()
        self.process.kill()
        for pid in below:
            _kill(pid)

    def tail(self) -> str:
        """Return the end of the log."""
        return "\n".join(self.log[-40:])

    def close(self) -> None:
        """End every process and release everything."""
        self.kill()
        self.process.wait(timeout=10)
        self._reader.join(timeout=10)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._directory.cleanup()

    def __enter__(self) -> "Pod":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _read_log(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.log.append(line.rstrip("\n"))
            found = LISTENING.search(line)
            if found:
                self._ports.put(tuple(int(port) for port in found.groups()))
        self._ports.put(None)


def client_addresses(pods: Sequence[Pod], stats: str | None = None) -> dict[str, Any]:
    """Return the dict a client takes for these pods."""
    addresses: dict[str, Any] = {
        "input_address": [pod.input_address for pod in pods],
        "output_address": [pod.output_address for pod in pods],
    }
    return addresses | ({"stats_update_address": stats} if stats else {})


def descendants(pid: int) -> list[int]:
    """Return the pids of all processes below `pid`, parents before children."""
    found: list[int] = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += [int(child), *descendants(int(child))]
    except (FileNotFoundError, ProcessLookupError):
        return found
    return found


def alive(pid: int) -> bool:
    """Say whether a process runs; one that ended and waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
