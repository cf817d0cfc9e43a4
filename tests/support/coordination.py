"""The coordinator as a process on loopback, and a subscriber as vLLM's front end opens one."""

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec
import zmq

from enginecore_curve.keys import KeyPair, connect_curve

ADDRESSES = re.compile(
    r"reports on (\S+), publishes on (\S+), http on \[\('127\.0\.0\.1', (\d+)\)\]"
)


def load_message(rank: int, waiting: int = 0, running: int = 0, usage: float = 0.0) -> bytes:
    """Return a report as engine servers push it."""
    stats = {"num_waiting_reqs": waiting, "num_running_reqs": running, "kv_cache_usage": usage}
    return msgspec.msgpack.encode([rank, [], stats, 12.5])


class Subscriber:
    """An XSUB that subscribes to all; `received` grows with each `read`."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        address: str,
        ipv6: bool = False,
        keys: tuple[KeyPair, str] | None = None,
    ) -> None:
        self.socket = context.socket(zmq.XSUB)
        if keys is not None:
            connect_curve(self.socket, *keys)
        self.socket.linger = 0
        self.socket.ipv6 = ipv6
        self.socket.connect(address)
        self.socket.send(b"\x01")
        self.received: list[Any] = []

    def read(self) -> list[Any]:
        """Return everything received so far, decoded."""
        while True:
            try:
                self.received.append(msgspec.msgpack.decode(self.socket.recv(zmq.NOBLOCK)))
            except zmq.Again:
                return self.received


class CoordinatorProcess(NamedTuple):
    """A running `python -m enginecore_coordinator`."""

    process: "subprocess.Popen[str]"
    report_address: str
    publish_address: str
    http_port: str

    def get(self, path: str) -> str:
        """Return the body of a page."""
        url = f"http://127.0.0.1:{self.http_port}{path}"
        with urllib.request.urlopen(url, timeout=5) as answer:
            return str(answer.read().decode())

    def ranks(self) -> list[dict[str, Any]]:
        """Return the ranks of the status document."""
        ranks: list[dict[str, Any]] = json.loads(self.get("/status"))["ranks"]
        return ranks

    def stop(self) -> str:
        """Ask it to stop; return its log."""
        self.process.terminate()
        return self.process.communicate(timeout=10)[1]


@contextmanager
def coordinator_process(
    report_address: str = "tcp://127.0.0.1:*",
    publish_address: str = "tcp://127.0.0.1:*",
    *,
    options: Sequence[str] = (),
) -> Iterator[CoordinatorProcess]:
    """Start a coordinator, by default on free loopback ports; it is killed at the end."""
    with subprocess.Popen(
        [
            sys.executable, "-m", "enginecore_coordinator", "--http-host", "127.0.0.1",
            "--http-port", "0", "--report-address", report_address,
            "--publish-address", publish_address, *options,
        ],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONWARNINGS": "error"},
    ) as process:  # fmt: skip
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            found = ADDRESSES.search(line)
            assert found, line
            yield CoordinatorProcess(process, *found.groups())
        finally:
            process.kill()
