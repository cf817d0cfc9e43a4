"""Any process of a pod killed: every pending call of every client fails within a second."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import pytest

from enginecore_client.errors import EngineDeadError, EngineNotReadyError
from enginecore_wire.contract import LivenessConfig
from enginecore_wire.requests import EngineCoreRequest
from support.eventually import eventually
from support.faces import Face, params
from support.pod import Pod, alive, client_addresses

BUDGET_SECONDS = 1.0
FROZEN_BUDGET_SECONDS = 5.0
STREAMS = 8

Make = Callable[..., Face]


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4 * STREAMS) as pool:
        yield pool


def victim(pod: Pod, name: str) -> int:
    """Return the pid of a process of the pod by its part in it."""
    below = pod.engine_processes()
    pids = {"server": pod.process.pid, "launcher": below[0], "engine": below[-1]}
    return pids[name]


@pytest.fixture
def orphans() -> Iterator[list[int]]:
    """Processes below a killed server, to kill at the end as the end of a pod would."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def pending_calls(face: Face, threads: ThreadPoolExecutor, pod: Pod) -> list[Future[object]]:
    """Start streams, a get_output and a call, none of which the engine will answer."""
    streams = [face.generate([1, 2, 3], params(50)) for _ in range(STREAMS)]
    calls: list[Future[object]] = [threads.submit(list, stream) for stream in streams]
    held = pod.status().in_flight
    face.add(EngineCoreRequest("queued", [1, 2, 3], sampling_params=params(50)))
    calls.append(threads.submit(face.get_output))
    eventually(lambda: pod.status().in_flight >= min(held + 1, STREAMS + 1))
    return calls


@pytest.mark.parametrize("name", ["engine", "launcher", "server"])
def test_every_pending_call_fails_within_a_second(
    name: str,
    make_face: Make,
    make_pod: Callable[..., Pod],
    threads: ThreadPoolExecutor,
    orphans: list[int],
) -> None:
    pod = make_pod("--launcher", "--ignore")
    faces = [make_face(client_addresses([pod])) for _ in range(2)]
    calls = [call for face in faces for call in pending_calls(face, threads, pod)]
    eventually(lambda: pod.status().in_flight == len(faces) * (STREAMS + 1))
    for face in faces:
        calls.append(threads.submit(face.call, "collective_rpc", "hang"))
    eventually(lambda: all(call.running() for call in calls))
    orphans += pod.engine_processes()
    os.kill(victim(pod, name), signal.SIGKILL)
    killed = time.monotonic()
    errors = [call.exception(timeout=10) for call in calls]
    assert {type(error) for error in errors} == {EngineDeadError}
    assert time.monotonic() - killed <= BUDGET_SECONDS
    with pytest.raises(EngineDeadError):
        list(faces[0].generate([1, 2, 3], params(4)))
    if name != "server":
        assert pod.process.wait(timeout=10) == 1
        eventually(lambda: not any(map(alive, orphans)), deadline=2)


def test_frozen_pod_is_given_up_within_five_seconds_and_used_again_once_it_thaws(
    make_face: Make, make_pod: Callable[..., Pod], threads: ThreadPoolExecutor
) -> None:
    """A stopped process is what a network that swallows everything looks like from outside."""
    pod = make_pod("--tokens", "100000", "--token-seconds", "0.01")
    face = make_face(client_addresses([pod]))
    stream = face.generate([1, 2, 3], params(2000))
    next(stream)
    call = threads.submit(list, stream)
    os.kill(pod.process.pid, signal.SIGSTOP)
    try:
        stopped = time.monotonic()
        assert isinstance(call.exception(timeout=20), EngineDeadError)
        assert time.monotonic() - stopped <= FROZEN_BUDGET_SECONDS
    finally:
        os.kill(pod.process.pid, signal.SIGCONT)

    def served() -> bool:
        with suppress(EngineDeadError, EngineNotReadyError):
            return len(list(face.generate([1, 2, 3], params(4)))) == 4
        return False

    eventually(served, "the thawed pod serves", deadline=20)
    eventually(lambda: pod.status().in_flight == 0, "the given-up stream was aborted")


def test_stuck_engine_is_given_up_after_the_step_deadline(
    make_face: Make, make_pod: Callable[..., Pod], threads: ThreadPoolExecutor
) -> None:
    liveness = LivenessConfig(step_deadline_seconds=1.0)
    pod = make_pod("--tokens", "100000", "--token-seconds", "0.01", liveness=liveness)
    face = make_face(client_addresses([pod]))
    stream = face.generate([1, 2, 3], params(2000))
    next(stream)
    call = threads.submit(list, stream)
    os.kill(victim(pod, "engine"), signal.SIGSTOP)
    assert isinstance(call.exception(timeout=20), EngineDeadError)
    assert pod.process.wait(timeout=10) == 1
    assert "StepDeadline" in pod.tail()
