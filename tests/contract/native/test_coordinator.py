"""The coordinator of engines that dial it, as a process: gate, loads, waves, end."""

import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
import zmq

from enginecore_wire.codec import MsgpackEncoder
from enginecore_wire.coordination import FirstRequest
from enginecore_wire.handshake import engine_identity
from enginecore_wire.outputs import EngineCoreOutputs, SchedulerStats
from support.eventually import eventually
from support.process import Process


@contextmanager
def coordinator(engines: int, *options: str) -> Iterator["Peers"]:
    command = [sys.executable, "-m", "enginecore_coordinator.native", "--engines", str(engines)]
    with Process([*command, *options], "coordinator log") as process, Peers() as peers:
        eventually(lambda: process.log, "its addresses")
        peers.dial(process, json.loads(process.log[0]))
        yield peers


class Peers:
    """Engines and clients of a coordinator, as bare sockets."""

    def __init__(self) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        self._encoder = MsgpackEncoder()
        self._kept: list[zmq.Socket[bytes]] = []

    def __enter__(self) -> "Peers":
        return self

    def __exit__(self, *exc: object) -> None:
        self._context.destroy(linger=0)

    def dial(self, process: Process, addresses: dict[str, str]) -> None:
        self.process, self.addresses = process, addresses
        self._reports = self._context.socket(zmq.PUSH)
        self._reports.connect(addresses["output"])

    def until_logged(self, text: str) -> None:
        """Return once the coordinator's last words are `text`."""
        eventually(lambda: self.process.log[-1].endswith(text), text)

    def engine(self, rank: int) -> "zmq.Socket[bytes]":
        socket = self._context.socket(zmq.XSUB)
        socket.setsockopt(zmq.ROUTING_ID, engine_identity(rank))
        self._kept.append(socket)
        socket.connect(self.addresses["input"])
        socket.send(b"\x01")
        return socket

    def client(self) -> "zmq.Socket[bytes]":
        socket = self._context.socket(zmq.XSUB)
        self._kept.append(socket)
        socket.connect(self.addresses["stats_publish"])
        socket.send(b"\x01")
        return socket

    def say(self, rank: int, **fields: Any) -> None:
        self._reports.send_multipart(self._encoder.encode(EngineCoreOutputs(rank, **fields)))

    def load(self, rank: int, waiting: int, running: int, usage: float) -> None:
        stats = SchedulerStats(
            num_waiting_reqs=waiting, num_running_reqs=running, kv_cache_usage=usage
        )
        self.say(rank, scheduler_stats=stats)


def received(socket: "zmq.Socket[bytes]", seconds: float = 10.0) -> list[bytes]:
    assert socket.poll(seconds * 1000), "nothing came"
    return socket.recv_multipart()


def until(socket: "zmq.Socket[bytes]", wanted: Any, seconds: float = 10.0) -> None:
    """Read publications until one is `wanted`."""
    seen = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        seen.append(msgspec.msgpack.decode(received(socket, seconds)[0]))
        if seen[-1] == wanted:
            return
    raise AssertionError(f"{wanted} was not published, but {seen}")


def test_engines_wait_until_all_are_there() -> None:
    with coordinator(2) as peers:
        first = peers.engine(0)
        assert not first.poll(300)
        second = peers.engine(1)
        assert received(first) == received(second) == [b"READY"]
        assert received(peers.engine(0)) == [b"READY"]  # one that started again


def test_engine_that_left_while_waiting_does_not_count() -> None:
    with coordinator(2) as peers:
        crashed = peers.engine(0)
        peers.until_logged("1 of 2 engines are there")
        crashed.close(0)
        peers.until_logged("0 of 2 engines are there")
        again = peers.engine(0)
        assert not again.poll(300)
        assert received(peers.engine(1)) == [b"READY"]


def test_loads_of_all_ranks_are_published() -> None:
    with coordinator(3) as peers:
        client = peers.client()
        until(client, [[[0, 0, 0.0]] * 3, 0, False])
        peers.load(2, 4, 5, 0.5)
        until(client, [[[0, 0, 0.0], [0, 0, 0.0], [4, 5, 0.5]], 0, False])
        peers.load(0, 1, 0, 0.25)
        until(client, [[[1, 0, 0.25], [0, 0, 0.0], [4, 5, 0.5]], 0, False])
        until(peers.client(), [[[1, 0, 0.25], [0, 0, 0.0], [4, 5, 0.5]], 0, False])


def test_waves_of_lockstep_engines() -> None:
    with coordinator(2, "--lockstep") as peers:
        engines = [peers.engine(rank) for rank in (0, 1)]
        for engine in engines:
            assert received(engine) == [b"READY"]
        client = peers.client()
        until(client, [[[0, 0, 0.0]] * 2, 0, False])
        client.send(msgspec.msgpack.encode(FirstRequest(engine_identity(1), 0)))
        for engine in engines:
            assert received(engine) == [b"\x02", msgspec.msgpack.encode([0, None])]
        peers.say(0, start_wave=0)
        until(client, [None, 0, True])
        peers.say(0, wave_complete=0)
        until(client, [None, 1, False])
        for engine in engines:
            assert received(engine) == [b"\x02", msgspec.msgpack.encode([0, None])]
        client.send(msgspec.msgpack.encode([None, 0]))  # a client that is behind
        for engine in engines:
            assert received(engine) == [b"\x02", msgspec.msgpack.encode([1, None])]


def test_independent_engines_are_not_woken() -> None:
    with coordinator(1) as peers:
        engine = peers.engine(0)
        assert received(engine) == [b"READY"]
        client = peers.client()
        client.send(msgspec.msgpack.encode(FirstRequest(engine_identity(0), 0)))
        peers.load(0, 1, 1, 0.0)
        until(client, [[[1, 1, 0.0]], 0, False])
        assert not engine.poll(100)


def test_more_engines_than_before() -> None:
    with coordinator(1) as peers:
        client = peers.client()
        until(client, [[[0, 0, 0.0]], 0, False])
        client.send(msgspec.msgpack.encode(["SCALE_ELASTIC_EP", 3]))
        peers.load(0, 1, 0, 0.0)
        until(client, [[[1, 0, 0.0], [0, 0, 0.0], [0, 0, 0.0]], 0, False])


def test_what_is_no_message_is_ignored() -> None:
    with coordinator(1) as peers:
        client = peers.client()
        for body in (b"\xc1", b"\x92\x01", b"\x81\x01\x02", 3000 * b"\x91", b"\x92\xa1x\xa1y"):
            client.send(body)
            peers._reports.send(body)
        peers.load(9, 1, 0, 0.0)
        peers.load(0, 3, 0, 0.0)
        until(client, [[[3, 0, 0.0]], 0, False])


def test_the_log_grows_far_less_than_what_is_ignored() -> None:
    with coordinator(1) as peers:
        for _ in range(1000):
            peers._reports.send(b"\xc1")
        eventually(lambda: "ignored, 512 so far" in peers.process.tail(), "half of them are read")
        peers.load(0, 3, 0, 0.0)
        until(peers.client(), [[[3, 0, 0.0]], 0, False])
        assert len(peers.process.log) == 1 + 10


def test_numbers_that_cannot_be_are_ignored() -> None:
    with coordinator(2, "--lockstep") as peers:
        client = peers.client()
        for engines in (-5, 0, 10**12, True):
            client.send(msgspec.msgpack.encode(["SCALE_ELASTIC_EP", engines]))
        client.send(msgspec.msgpack.encode([None, 2**64 - 1]))
        peers.say(0, wave_complete=2**64 - 1)
        peers.say(0, start_wave=2**64 - 1)
        peers.load(0, 3, 0, 0.0)
        until(client, [[[3, 0, 0.0], [0, 0, 0.0]], 0, False])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_ends_in_order(number: signal.Signals) -> None:
    with coordinator(1) as peers:
        peers.process.process.send_signal(number)
        assert peers.process.process.wait(10) == 0
        assert len(peers.process.log) == 1


def test_address_that_cannot_be_bound() -> None:
    command = [sys.executable, "-m", "enginecore_coordinator.native", "--engines", "1"]
    with Process([*command, "--publish", "tcp://203.0.113.1:1"], "coordinator log") as process:
        assert process.process.wait(20) == 1
        eventually(lambda: "203.0.113.1" in process.tail(), "the reason")
