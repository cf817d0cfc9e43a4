"""A pod that drains: running streams end whole, new requests go elsewhere or are told why."""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from enginecore_client.errors import EngineDrainingError
from enginecore_wire.outputs import EngineCoreOutput, FinishReason
from support.eventually import eventually
from support.faces import Face, params
from support.pod import Pod, client_addresses

MakeFace = Callable[..., Face]
MakePod = Callable[..., Pod]

SLOW = ("--tokens", "1000", "--token-seconds", "0.01")


def count(outputs: Iterable[EngineCoreOutput]) -> int:
    return sum(len(output.new_token_ids) for output in outputs)


def refused(face: Face, **options: Any) -> bool:
    """Say whether a new request is refused because of the drain."""
    try:
        list(face.generate([1, 2, 3], params(4), **options))
    except EngineDrainingError as error:
        return error.retryable
    return False


@pytest.mark.parametrize("how", ["drain", "terminate"])
def test_running_stream_ends_whole_and_new_ones_are_refused(
    how: str, make_face: MakeFace, make_pod: MakePod
) -> None:
    pod = make_pod(*SLOW)
    face = make_face(client_addresses([pod]))
    stream = face.generate([1, 2, 3], params(200))
    next(stream)
    getattr(pod, how)()
    eventually(lambda: refused(face))
    assert pod.status().phase == "Draining"
    outputs = list(stream)
    assert count(outputs) == 199
    assert outputs[-1].finish_reason == FinishReason.LENGTH
    if how == "drain":
        pod.terminate()
    assert pod.process.wait(timeout=10) == 0


def test_stream_past_the_deadline_ends_with_abort(make_face: MakeFace, make_pod: MakePod) -> None:
    pod = make_pod(*SLOW, drain_deadline_seconds=0.3)
    face = make_face(client_addresses([pod]))
    stream = face.generate([1, 2, 3], params(1000))
    next(stream)
    pod.terminate()
    outputs = list(stream)
    assert outputs[-1].finish_reason == FinishReason.ABORT
    assert 0 < count(outputs) < 999
    assert pod.process.wait(timeout=10) == 0


def test_new_requests_go_to_the_other_engine(make_face: MakeFace, make_pod: MakePod) -> None:
    pods = [make_pod(*SLOW, rank=rank) for rank in (0, 1)]
    face = make_face(client_addresses(pods))
    stream = face.generate([1, 2, 3], params(100), data_parallel_rank=0)
    next(stream)
    pods[0].drain()

    eventually(lambda: refused(face, data_parallel_rank=0))
    assert [count(face.generate([1, 2, 3], params(3))) for _ in range(6)] == [3] * 6
    assert pods[0].status().in_flight <= 1
    assert count(stream) == 99


def test_no_request_is_lost_while_a_pod_leaves_under_load(
    make_face: MakeFace, make_pod: MakePod
) -> None:
    """Clients that retry notice nothing: each of their requests is served whole."""
    pods = [make_pod("--tokens", "20", "--token-seconds", "0.002", rank=rank) for rank in (0, 1)]
    face = make_face(client_addresses(pods), retry=True)
    gone = threading.Event()
    served = [0, 0]

    def load(_: int) -> int:
        rounds = 0
        while not gone.is_set() or rounds < 3:
            assert count(face.generate([1, 2, 3], params(20))) == 20
            rounds += 1
            served[gone.is_set()] += 1
        return rounds

    with ThreadPoolExecutor(12) as threads:
        work = threads.map(load, range(12))
        eventually(lambda: served[0] > 24)
        pods[0].terminate()
        try:
            assert pods[0].process.wait(timeout=20) == 0
        finally:
            gone.set()
        assert all(rounds >= 3 for rounds in work)
