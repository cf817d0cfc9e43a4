"""The coordinator over real sockets on loopback: as a part of this process, and as a process."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
import zmq
from prometheus_client import CollectorRegistry

from enginecore_coordinator.loads import LoadBook, Pace
from enginecore_coordinator.metrics import CoordinatorMetrics
from enginecore_coordinator.service import Coordinator
from enginecore_wire.outputs import EngineCoreOutputs, SchedulerStats
from support.eventually import eventually, eventually_async

Context = zmq.Context[zmq.Socket[bytes]]


def report(rank: int, waiting: int = 0, running: int = 0, usage: float = 0.0) -> bytes:
    stats = {"num_waiting_reqs": waiting, "num_running_reqs": running, "kv_cache_usage": usage}
    return msgspec.msgpack.encode([rank, [], stats, 12.5])


class Subscriber:
    """An XSUB as vLLM's front end opens it; `received` grows with each `read`."""

    def __init__(self, context: Context, address: str, ipv6: bool = False) -> None:
        self.socket = context.socket(zmq.XSUB)
        self.socket.linger = 0
        self.socket.ipv6 = ipv6
        self.socket.connect(address)
        self.socket.send(b"\x01")
        self.received: list[Any] = []

    def read(self) -> list[Any]:
        while True:
            try:
                self.received.append(msgspec.msgpack.decode(self.socket.recv(zmq.NOBLOCK)))
            except zmq.Again:
                return self.received


class Cluster:
    """A coordinator on this loop, with a way to connect engines and clients."""

    def __init__(self, context: Context, pace: Pace, address: str = "tcp://127.0.0.1:*") -> None:
        loop = asyncio.get_running_loop()
        self.context = context
        self.registry = CollectorRegistry()
        self.book = LoadBook(8, loop.time(), pace)
        self.coordinator = Coordinator(
            self.book,
            CoordinatorMetrics(self.registry),
            context,
            address,
            address,
        )
        self.sockets: list[zmq.Socket[bytes]] = []

    def engine(self) -> "zmq.Socket[bytes]":
        push = self.context.socket(zmq.PUSH)
        push.linger = 0
        push.connect(self.coordinator.report_address)
        self.sockets.append(push)
        return push

    def client(self) -> Subscriber:
        subscriber = Subscriber(self.context, self.coordinator.publish_address)
        self.sockets.append(subscriber.socket)
        return subscriber

    def counted(self, name: str, **labels: str) -> float:
        value = self.registry.get_sample_value(f"enginecore_coordinator_{name}_total", labels)
        return value or 0.0

    def close(self) -> None:
        for socket in self.sockets:
            socket.close(linger=0)
        self.coordinator.close()


@pytest.fixture
async def make_cluster() -> Any:
    """Return a function that opens a cluster; all are closed at the end."""
    opened: list[Cluster] = []
    with zmq.Context() as context:

        def make(pace: Pace = Pace()) -> Cluster:  # noqa: B008
            opened.append(Cluster(context, pace))
            return opened[-1]

        yield make
        for cluster in opened:
            cluster.close()


async def test_reports_reach_every_client(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster()
    clients = [cluster.client() for _ in range(3)]
    cluster.engine().send(report(0, 2, 1, 0.25))
    cluster.engine().send(report(1, 0, 4, 0.5))
    expected = [[[2, 1, 0.25], [0, 4, 0.5]], 0, False]
    for client in clients:
        await eventually_async(lambda client=client: expected in client.read())
    assert cluster.counted("reports") == 2


async def test_late_subscriber_gets_the_loads_before_any_change(
    make_cluster: Callable[..., Cluster],
) -> None:
    cluster = make_cluster(Pace(unchanged=3600, silent=3600, forgotten=7200))
    first = cluster.client()
    cluster.engine().send(report(1, 3))
    await eventually_async(lambda: [[[0, 0, 0.0], [3, 0, 0.0]], 0, False] in first.read())
    late = cluster.client()
    await eventually_async(late.read)
    assert late.received[0] == [[[0, 0, 0.0], [3, 0, 0.0]], 0, False]


async def test_vanished_engine_counts_as_idle(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(Pace(unchanged=3600, silent=0.3, forgotten=3600))
    client, stays, goes = cluster.client(), cluster.engine(), cluster.engine()
    goes.send(report(1, 5, 5, 0.5))
    await eventually_async(lambda: [[[0, 0, 0.0], [5, 5, 0.5]], 0, False] in client.read())
    goes.close(linger=0)

    def only_the_other() -> bool:
        stays.send(report(0, 1))
        return client.read()[-1] == [[[1, 0, 0.0], [0, 0, 0.0]], 0, False]

    await eventually_async(only_the_other)


async def test_burst_of_changes_is_published_once_per_interval(
    make_cluster: Callable[..., Cluster],
) -> None:
    """With an interval that never ends here, 2,000 changes are one publication, at the next
    subscriber's arrival, and it has the last of them."""
    cluster = make_cluster(Pace(changed=3600, unchanged=7200, silent=7200, forgotten=7200))
    client, engine = cluster.client(), cluster.engine()
    await eventually_async(client.read)
    before = cluster.counted("publications")
    for waiting in range(1, 2001):
        engine.send(report(0, waiting))
    await eventually_async(lambda: cluster.counted("reports") == 2000)
    assert cluster.counted("publications") == before
    cluster.client()
    await eventually_async(lambda: [[[2000, 0, 0.0]], 0, False] in client.read())
    assert cluster.counted("publications") == before + 1


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([b""], "not_a_report"),
        ([b"\xc1"], "not_a_report"),
        ([b"\x91" * 60_000], "not_a_report"),
        ([b"hello"], "not_a_report"),
        ([msgspec.msgpack.encode({"rank": 0})], "not_a_report"),
        ([msgspec.msgpack.encode(["0", [], {}, 1.0])], "not_a_report"),
        ([msgspec.msgpack.encode([0, [], {"num_waiting_reqs": "1"}, 1.0])], "not_a_report"),
        ([msgspec.msgpack.encode([0, [], msgspec.msgpack.Ext(1, b"x"), 1.0])], "not_a_report"),
        ([b"ENGINE_CORE_DEAD"], "not_a_report"),
        ([report(8)], "rank_out_of_range"),
        ([report(0, -1)], "value_out_of_range"),
        ([msgspec.msgpack.encode([0, [], None, 1.0])], "no_stats"),
        ([msgspec.msgpack.encode([0, [["a", [1]]], {}, 1.0])], "has_outputs"),
    ],
)
async def test_bad_report_is_counted_and_the_next_good_one_still_works(
    frames: list[bytes], reason: str, make_cluster: Callable[..., Cluster]
) -> None:
    cluster = make_cluster()
    client, engine = cluster.client(), cluster.engine()
    engine.send_multipart(frames)
    engine.send(report(0, 1))
    await eventually_async(lambda: [[[1, 0, 0.0]], 0, False] in client.read())
    assert cluster.counted("reports_refused", reason=reason) == 1


@pytest.mark.parametrize(
    ("body", "counter"),
    [
        (bytes.fromhex("92c402010003"), "first_requests"),
        (msgspec.msgpack.encode([1, 3]), "first_requests"),
        (msgspec.msgpack.encode([None, 0]), "first_requests"),
        (msgspec.msgpack.encode([b"\x01", 0]), "unknown_messages"),
        (msgspec.msgpack.encode(["SCALE_ELASTIC_EP", 4]), "unknown_messages"),
        (b"\xc1", "unknown_messages"),
        (b"\x91" * 60_000, "unknown_messages"),
    ],
)
async def test_messages_of_clients_are_tolerated(
    body: bytes, counter: str, make_cluster: Callable[..., Cluster]
) -> None:
    cluster = make_cluster()
    client = cluster.client()
    await eventually_async(client.read)
    client.socket.send(body)
    await eventually_async(lambda: cluster.counted(counter) == 1)
    cluster.engine().send(report(0, 1))
    await eventually_async(lambda: [[[1, 0, 0.0]], 0, False] in client.read())
    assert all(wave == 0 and running is False for _, wave, running in client.received)


async def test_stats_of_the_torch_and_vllm_engines_shape_are_read(
    make_cluster: Callable[..., Cluster],
) -> None:
    """All fields of SchedulerStats, keys of newer engines and surplus positions included."""
    cluster = make_cluster()
    client = cluster.client()
    stats = msgspec.to_builtins(SchedulerStats(num_waiting_reqs=2, num_running_reqs=3))
    body = msgspec.to_builtins(EngineCoreOutputs(1, [], None, 5.0))
    body[2] = stats | {"cudagraph_stats": None, "perf_stats": {"a": [1]}}
    cluster.engine().send(msgspec.msgpack.encode([*body, "later"]))
    await eventually_async(lambda: [[[0, 0, 0.0], [2, 3, 0.0]], 0, False] in client.read())


@pytest.mark.parametrize("address", ["tcp://*:*", "tcp://[::1]:*", "tcp://127.0.0.1:*"])
async def test_listens_on_ipv6_ipv4_or_both(address: str) -> None:
    hosts = {"tcp://*:*": ["[::1]", "127.0.0.1"]}.get(address, [address[6:-2]])
    with zmq.Context() as context:
        cluster = Cluster(context, Pace(), address)
        try:
            for host in hosts:
                port = cluster.coordinator.publish_address.rpartition(":")[2]
                client = Subscriber(context, f"tcp://{host}:{port}", ipv6="[" in host)
                cluster.sockets.append(client.socket)
                await eventually_async(client.read)
        finally:
            cluster.close()


async def test_taken_address_is_an_error_and_leaves_no_socket(
    make_cluster: Callable[..., Cluster],
) -> None:
    cluster = make_cluster()
    with pytest.raises(zmq.ZMQError, match="Address already in use"):
        Coordinator(
            cluster.book,
            CoordinatorMetrics(CollectorRegistry()),
            cluster.context,
            "tcp://127.0.0.1:*",
            cluster.coordinator.publish_address,
        )


ADDRESSES = re.compile(
    r"reports on (\S+), publishes on (\S+), http on \[\('127\.0\.0\.1', (\d+)\)\]"
)


@contextmanager
def coordinator_process(*options: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """Start `python -m enginecore_coordinator`; yields it and its three addresses."""
    command = [sys.executable, "-m", "enginecore_coordinator", "--http-host", "127.0.0.1"]
    free = ["--report-address", "tcp://127.0.0.1:*", "--publish-address", "tcp://127.0.0.1:*"]
    with subprocess.Popen(
        [*command, *free, "--http-port", "0", *options],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONWARNINGS": "error"},
    ) as process:
        try:
            assert process.stderr is not None
            found = ADDRESSES.search(process.stderr.readline())
            assert found
            yield process, list(found.groups())
        finally:
            process.kill()


def get(port: str, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
        return str(answer.read().decode())


def test_process_serves_and_leaves_cleanly_on_sigterm() -> None:
    with coordinator_process() as (process, addresses), zmq.Context() as context:
        reports, publishes, port = addresses
        with context.socket(zmq.PUSH) as engine:
            engine.connect(reports)
            client = Subscriber(context, publishes)
            engine.send(report(1, 3, 2, 0.5))
            eventually(lambda: [[[0, 0, 0.0], [3, 2, 0.5]], 0, False] in client.read())
            assert get(port, "/healthz") == "ok\n"
            status = json.loads(get(port, "/status"))
            assert status["ranks"][0] | {"reportAgeSeconds": 0} == {
                "rank": 1, "waiting": 3, "running": 2, "kvUsage": 0.5,
                "reportAgeSeconds": 0, "silent": False,
            }  # fmt: skip
            assert status["publishAddress"] == publishes
            metrics = get(port, "/metrics")
            assert 'enginecore_coordinator_waiting_requests{engine="1"} 3.0' in metrics
            assert "enginecore_coordinator_reports_total 1.0" in metrics
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=5)
            client.socket.close(linger=0)
        assert process.returncode == 0
        assert "stopped" in errors
        assert "Warning" not in errors


def test_process_that_cannot_listen_says_which_options_to_check() -> None:
    with coordinator_process() as (_, addresses):
        done = subprocess.run(
            [sys.executable, "-m", "enginecore_coordinator", "--report-address", addresses[0]],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    assert done.returncode == 1
    assert "cannot listen: Address already in use" in done.stderr
    assert f"check --report-address {addresses[0]}, --publish-address" in done.stderr
