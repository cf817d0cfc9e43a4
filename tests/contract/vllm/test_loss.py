"""The process of a real vLLM engine is killed: all that hangs on it fails at once, typed."""

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import pytest

from enginecore_client.errors import EngineDeadError, EngineNotReadyError
from enginecore_wire.requests import EngineCoreRequest
from support.faces import FACES, Face, params
from support.vllm_engines import RANKS, EngineRoom, EngineSet

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(900),
    pytest.mark.may_leak("processes", "threads", "sockets", reason="engines are shared"),
]

BUDGET_SECONDS = 1.0
STREAMS = 3
VICTIMS = dict(zip(FACES, reversed(range(RANKS)), strict=True))
"""Which rank is killed under which kind of client."""


@pytest.fixture(scope="module", autouse=True)
def _no_dead_engines_stay(room: EngineRoom) -> Iterator[None]:
    yield
    room.clear()


@pytest.mark.parametrize("kind", list(FACES))
def test_a_killed_engine_is_told_within_a_second(engines: EngineSet, kind: str) -> None:
    faces = {each: engines.face(each) for each in FACES}  # whoever connects waits for both ranks
    face, rank = faces[kind], VICTIMS[kind]
    victim = engines.engine_pid(rank)
    streams = [
        face.generate([1, 2, 3], params(900), data_parallel_rank=rank) for _ in range(STREAMS)
    ]
    for stream in streams:
        next(stream)
    with ThreadPoolExecutor(STREAMS + 2) as threads:
        calls: list[Future[object]] = [threads.submit(list, stream) for stream in streams]
        request = EngineCoreRequest("queued", [1, 2], sampling_params=params(900),
                                    data_parallel_rank=rank)  # fmt: skip
        face.add(request)
        wait_for_output(face)
        calls.append(threads.submit(drain, face))
        os.kill(victim, signal.SIGKILL)
        killed = time.monotonic()
        errors = [call.exception(timeout=30) for call in calls]
        seconds = time.monotonic() - killed
    print(f"{kind}: {len(errors)} calls failed {seconds:.3f} s after kill -9")
    assert {type(error) for error in errors} == {EngineDeadError}
    assert {error.engine for error in errors} == {rank}  # type: ignore[union-attr]
    assert seconds <= BUDGET_SECONDS
    with pytest.raises((EngineDeadError, EngineNotReadyError)):
        list(face.generate([1, 2, 3], params(2), data_parallel_rank=rank))


def wait_for_output(face: Face) -> None:
    """Read one message; that another engine died before is told first."""
    with suppress(EngineDeadError):
        face.get_output()
        return
    face.get_output()


def drain(face: Face) -> None:
    """Read messages until an error ends it."""
    while True:
        face.get_output()
