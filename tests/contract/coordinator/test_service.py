"""The coordinator over real sockets on loopback: as a part of this process, and as a process."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import zmq
from prometheus_client import CollectorRegistry

from enginecore_coordinator.loads import LoadBook, Pace
from enginecore_coordinator.metrics import CoordinatorMetrics
from enginecore_coordinator.service import Coordinator
from enginecore_wire.outputs import EngineCoreOutputs, SchedulerStats
from support.coordination import Subscriber, coordinator_process, load_message
from support.eventually import eventually, eventually_async

Context = zmq.Context[zmq.Socket[bytes]]


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
    cluster.engine().send(load_message(0, 2, 1, 0.25))
    cluster.engine().send(load_message(1, 0, 4, 0.5))
    expected = [[[2, 1, 0.25], [0, 4, 0.5]], 0, False]
    for client in clients:
        await eventually_async(lambda client=client: expected in client.read())
    assert cluster.counted("reports") == 2


async def test_late_subscriber_gets_the_loads_before_any_change(
    make_cluster: Callable[..., Cluster],
) -> None:
    cluster = make_cluster(Pace(unchanged=3600, silent=3600, forgotten=7200))
    first = cluster.client()
    cluster.engine().send(load_message(1, 3))
    await eventually_async(lambda: [[[0, 0, 0.0], [3, 0, 0.0]], 0, False] in first.read())
    late = cluster.client()
    await eventually_async(late.read)
    assert late.received[0] == [[[0, 0, 0.0], [3, 0, 0.0]], 0, False]


async def test_vanished_engine_counts_as_idle(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(Pace(unchanged=3600, silent=0.3, forgotten=3600))
    client, stays, goes = cluster.client(), cluster.engine(), cluster.engine()
    goes.send(load_message(1, 5, 5, 0.5))
    await eventually_async(lambda: [[[0, 0, 0.0], [5, 5, 0.5]], 0, False] in client.read())
    goes.close(linger=0)

    def only_the_other() -> bool:
        stays.send(load_message(0, 1))
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
        engine.send(load_message(0, waiting))
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
        ([load_message(8)], "rank_out_of_range"),
        ([load_message(0, -1)], "value_out_of_range"),
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
    engine.send(load_message(0, 1))
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
    cluster.engine().send(load_message(0, 1))
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


def test_process_serves_and_leaves_cleanly_on_sigterm() -> None:
    with coordinator_process() as coordinator, zmq.Context() as context:
        process = coordinator.process
        with context.socket(zmq.PUSH) as engine:
            engine.connect(coordinator.report_address)
            client = Subscriber(context, coordinator.publish_address)
            engine.send(load_message(1, 3, 2, 0.5))
            eventually(lambda: [[[0, 0, 0.0], [3, 2, 0.5]], 0, False] in client.read())
            assert coordinator.get("/healthz") == "ok\n"
            assert coordinator.ranks()[0] | {"reportAgeSeconds": 0} == {
                "rank": 1, "waiting": 3, "running": 2, "kvUsage": 0.5,
                "reportAgeSeconds": 0, "silent": False,
            }  # fmt: skip
            metrics = coordinator.get("/metrics")
            assert 'enginecore_coordinator_waiting_requests{engine="1"} 3.0' in metrics
            assert "enginecore_coordinator_reports_total 1.0" in metrics
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=5)
            client.socket.close(linger=0)
        assert process.returncode == 0
        assert "stopped" in errors
        assert "Warning" not in errors


def test_process_that_cannot_listen_says_which_options_to_check() -> None:
    with coordinator_process() as coordinator:
        taken = coordinator.report_address
        done = subprocess.run(
            [sys.executable, "-m", "enginecore_coordinator", "--report-address", taken],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    assert done.returncode == 1
    assert "cannot listen: Address already in use" in done.stderr
    assert f"check --report-address {taken}, --publish-address" in done.stderr


def test_process_with_a_name_that_does_not_resolve_says_which() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "enginecore_coordinator", "--report-address", "tcp://no.invalid:1"],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert done.returncode == 1
    assert "cannot listen: no.invalid: " in done.stderr
    assert "check --report-address tcp://no.invalid:1" in done.stderr
