"""What a server reports to the coordinator."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import zmq

from enginecore_curve.keys import new_key_pair
from enginecore_server.reports import CoordinatorKeys, CoordinatorReports
from enginecore_wire.outputs import EngineCoreOutputs, SchedulerStats
from support.eventually import eventually
from support.pod import Pod
from support.raw_client import RawClient, request

MakePod = Callable[..., Pod]
Connect = Callable[..., RawClient]


class Reports:
    """The coordinator's end: a PULL on a port of its own."""

    def __init__(self, port: int = 0) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.PULL)
        self._socket.bind(f"tcp://127.0.0.1:{port}")
        self.port = int(str(self._socket.get(zmq.LAST_ENDPOINT), "ascii").rpartition(":")[2])

    def next(self, seconds: float = 10.0) -> EngineCoreOutputs:
        assert self._socket.poll(round(seconds * 1000)), "no report"
        return msgspec.msgpack.decode(self._socket.recv(), type=EngineCoreOutputs)

    def until_running(self, count: int) -> EngineCoreOutputs:
        while True:
            report = self.next()
            assert report.scheduler_stats is not None
            if report.scheduler_stats.num_running_reqs == count:
                return report

    def close(self) -> None:
        self._context.destroy(linger=0)


@pytest.fixture
def reports() -> Iterator[Reports]:
    collector = Reports()
    yield collector
    collector.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_load_is_reported_as_it_changes(
    make_pod: MakePod, connect: Connect, reports: Reports, host: str
) -> None:
    pod = make_pod(
        "--stats", "--token-seconds", "0.02", "--tokens", "1000",
        rank=5, coordinator_address=f"tcp://{host}:{reports.port}",
    )  # fmt: skip
    client = connect(pod)
    client.ready()
    idle = reports.until_running(0)
    assert (idle.engine_index, idle.outputs, idle.utility_output) == (5, [], None)
    client.add(request("work", max_tokens=1000))
    busy = reports.until_running(1)
    assert busy.timestamp > 0
    client.abort("work")
    reports.until_running(0)


def test_an_idle_engine_reports_every_second(make_pod: MakePod, reports: Reports) -> None:
    make_pod(coordinator_address=f"tcp://127.0.0.1:{reports.port}")
    reports.next()
    begin = time.monotonic()
    reports.next()
    assert 0.8 <= time.monotonic() - begin <= 5.0


def test_reports_return_with_a_new_coordinator(make_pod: MakePod) -> None:
    first = Reports()
    make_pod(coordinator_address=f"tcp://127.0.0.1:{first.port}")
    first.next()
    first.close()
    second = eventually(lambda: _reopen(first.port))
    try:
        second.next()
    finally:
        second.close()


def test_a_name_that_does_not_resolve_disturbs_nobody(make_pod: MakePod, connect: Connect) -> None:
    pod = make_pod(coordinator_address="tcp://coordinator.invalid:5559")
    client = connect(pod)
    client.ready()
    client.add(request("served"))
    client.tokens("served")
    eventually(lambda: any("does not resolve" in line for line in pod.log))


@pytest.mark.parametrize("host", ["127.0.0.1", "coordinator.invalid"], ids=["no keys", "no host"])
async def test_what_is_wrong_is_told_once_in_a_while(
    host: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """However often there is something to report."""
    keys = CoordinatorKeys(new_key_pair(), "", str(tmp_path / "missing"))
    with zmq.Context() as context:
        reports = CoordinatorReports(context, f"tcp://{host}:5559", 0, keys)
        for now in (0.0, 0.05, 1.0, 2.9, 3.1, 3.2):
            reports.send(SchedulerStats(), 0.0, now)
            while reports._connecting is not None:
                await reports._connecting
        await reports.close()
    assert len(caplog.records) == 2


def _reopen(port: int) -> Reports | None:
    try:
        return Reports(port)
    except zmq.ZMQError:
        return None
