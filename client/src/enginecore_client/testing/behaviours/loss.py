"""Engines that die."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pytest

from enginecore_client.errors import EngineDeadError
from enginecore_client.testing.behaviours._registry import (
    ONE,
    OUTSIDE,
    PROMPT,
    Ground,
    Running,
    own,
    request,
)
from enginecore_client.testing.cells import Way
from enginecore_client.testing.deployments import kill
from enginecore_client.testing.engines import Trait

BUDGET_SECONDS: Final = 2.0
STREAMS: Final = 3
PATIENCE_SECONDS: Final = 30.0


@own(ways=OUTSIDE, ranks=ONE)
def killed_engine_fails_every_call(ground: Ground) -> None:
    """When an engine's process is killed, every pending call fails within two seconds, and so
    does every new one."""
    with ground.running() as run:
        fails_every_call(run, 0, lambda: kill(run.deployment.processes(0)))
        for ask in (lambda: run.read(4), lambda: run.face.call("is_sleeping")):
            with pytest.raises(EngineDeadError):
                ask()


@own(ways=OUTSIDE, needs=frozenset({Trait.DIES_WHEN_TOLD}))
def last_word_fails_every_call(ground: Ground) -> None:
    """An engine whose loop breaks says so, and every pending call fails with that."""
    with ground.running() as run:
        last = run.cell.ranks - 1

        def break_it() -> None:
            with pytest.raises(EngineDeadError):
                run.face.call("collective_rpc", "dead", engine=last)

        fails_every_call(run, last, break_it)


@own(ways=frozenset({Way.IN_PROCESS}), needs=frozenset({Trait.DIES_WHEN_TOLD}))
def broken_step_fails_every_call(ground: Ground) -> None:
    """An engine in this process that breaks in a step ends everything, and the cause is kept."""
    cause = MemoryError("no blocks")

    def breaks() -> None:
        raise cause

    with ground.running() as run:
        stream = run.face.generate(list(PROMPT), run.long)
        next(stream)
        run.face.client.engine_core.before_step = breaks
        with pytest.raises(EngineDeadError) as dead:
            list(stream)
        assert dead.value.__cause__ is cause
        for ask in (run.face.get_output, lambda: run.read(3), lambda: run.face.call("is_sleeping")):
            with pytest.raises(EngineDeadError):
                ask()


def fails_every_call(run: Running, rank: int, act: Callable[[], object]) -> None:
    """Start all that an engine can owe; see all of it fail in time once it was acted upon."""
    streams = [
        run.face.generate(list(PROMPT), run.long, **run.placed(rank)) for _ in range(STREAMS)
    ]
    for stream in streams:
        next(stream)
    run.face.add(request("queued", run.engine.long_tokens, data_parallel_rank=rank))
    run.face.get_output()

    def drain() -> None:
        while True:
            run.face.get_output()

    with ThreadPoolExecutor(STREAMS + 1) as threads:
        calls: list[Any] = [threads.submit(list, stream) for stream in streams]
        calls.append(threads.submit(drain))
        began = time.monotonic()
        act()
        errors = [call.exception(PATIENCE_SECONDS) for call in calls]
        seconds = time.monotonic() - began
    assert {type(error) for error in errors} == {EngineDeadError}
    assert {error.engine for error in errors} == {rank}
    assert seconds <= BUDGET_SECONDS
