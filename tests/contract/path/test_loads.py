"""Loads: from engines over servers and coordinator to the client's choice of engine."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import zmq

from enginecore_wire.requests import EngineCoreRequest
from support.coordination import (
    CoordinatorProcess,
    Subscriber,
    coordinator_process,
    load_message,
)
from support.eventually import eventually
from support.faces import Face, params
from support.pod import Pod, client_addresses

MakeFace = Callable[..., Face]
MakePod = Callable[..., Pod]


@pytest.fixture
def coordinator() -> Iterator[CoordinatorProcess]:
    with coordinator_process() as started:
        yield started


def served_by(face: Face, names: list[str]) -> Counter[int]:
    """Send one-token requests one after the other; count the engines that served them."""
    engines: Counter[int] = Counter()
    for name in names:
        face.add(EngineCoreRequest(name, [1, 2, 3], sampling_params=params(1)))
        engines[face.get_output().engine_index] += 1
    return engines


def test_loads_of_two_engines_reach_a_subscriber(
    coordinator: CoordinatorProcess, make_face: MakeFace, make_pod: MakePod
) -> None:
    pods = [
        make_pod(
            "--ignore" if rank else "--stats", "--tokens", "100000", "--token-seconds", "0.01",
            rank=rank, coordinator_address=coordinator.report_address,
        )
        for rank in (0, 1)
    ]  # fmt: skip
    face = make_face(client_addresses(pods))
    with zmq.Context() as context:
        subscriber = Subscriber(context, coordinator.publish_address)
        eventually(lambda: [[[0, 0, 0.0], [0, 0, 0.0]], 0, False] in subscriber.read())
        streams = [face.generate([1, 2, 3], params(5000), data_parallel_rank=0) for _ in range(3)]

        def three_on_the_first() -> bool:
            (waiting, busy, usage), other = subscriber.read()[-1][0]
            return (waiting + busy, usage > 0, other) == (3, True, [0, 0, 0.0])

        eventually(three_on_the_first)
        for stream in streams:
            stream.close()  # type: ignore[attr-defined]
        eventually(lambda: subscriber.read()[-1][0] == [[0, 0, 0.0], [0, 0, 0.0]])
        pods[1].kill()
        eventually(lambda: [rank["silent"] for rank in coordinator.ranks()] == [False, True])
        subscriber.socket.close(linger=0)


class Pair:
    """A client of two pods that report to nobody, and a way to report for them.

    What the coordinator says is then the only difference between the two.
    """

    def __init__(self, face: Face, reports: "zmq.Socket[bytes]") -> None:
        self._face = face
        self._reports = reports
        self._names = (f"request-{number}" for number in itertools.count())

    def served(self, requests: int) -> Counter[int]:
        return served_by(self._face, [next(self._names) for _ in range(requests)])

    def avoids(self, busy: int) -> bool:
        """Report one engine as busy; say whether six requests in a row go to the other."""
        for rank in (0, 1):
            self._reports.send(load_message(rank, *((40, 40, 0.9) if rank == busy else ())))
        return self.served(6) == {1 - busy: 6}


@pytest.fixture
def pair(coordinator: CoordinatorProcess, make_face: MakeFace, make_pod: MakePod) -> Iterator[Pair]:
    pods = [make_pod(rank=rank) for rank in (0, 1)]
    face = make_face(client_addresses(pods, stats=coordinator.publish_address))
    with zmq.Context() as context, context.socket(zmq.PUSH) as reports:
        reports.linger = 0
        reports.connect(coordinator.report_address)
        yield Pair(face, reports)


def test_client_prefers_the_engine_the_coordinator_calls_idle(pair: Pair) -> None:
    for busy in (0, 1, 0):
        eventually(lambda busy=busy: pair.avoids(busy))


def test_client_lives_through_a_coordinator_that_goes_and_comes_back(
    coordinator: CoordinatorProcess, pair: Pair
) -> None:
    eventually(lambda: pair.avoids(0))
    coordinator.process.kill()
    coordinator.process.wait()
    assert pair.served(8).total() == 8
    with coordinator_process(coordinator.report_address, coordinator.publish_address):
        eventually(lambda: pair.avoids(1))


def test_requests_of_one_client_spread_evenly(make_face: MakeFace, make_pod: MakePod) -> None:
    pods = [make_pod("--ignore", rank=rank) for rank in (0, 1)]
    face = make_face(client_addresses(pods))
    for number in range(40):
        face.add(EngineCoreRequest(f"{number}", [1, 2, 3], sampling_params=params(4)))
    eventually(lambda: sum(pod.status().in_flight for pod in pods) == 40)
    assert [pod.status().in_flight for pod in pods] == [20, 20]
