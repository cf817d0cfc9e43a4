"""Engines that die."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pytest

from enginecore_client.errors import EngineDeadError
from enginecore_client.testing.behaviours._registry import (
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


@own(ways=OUTSIDE)
def killed_engine_fails_every_call(ground: Ground) -> None:
    """When an engine's process is killed, every pending call fails within two seconds, and the
    error says which engine it was."""
    with ground.running() as run:
        last = run.cell.ranks - 1
        errors, seconds = _errors_after(run, last, lambda: kill(run.deployment.processes(last)))
        assert {type(error) for error in errors} == {EngineDeadError}
        assert {error.engine for error in errors} == {last}
        assert seconds <= BUDGET_SECONDS
        with pytest.raises(EngineDeadError):
            run.read(4, **run.placed(last))


@own(ways=OUTSIDE, needs=frozenset({Trait.DIES_WHEN_TOLD}))
def last_word_fails_every_call(ground: Ground) -> None:
    """An engine whose loop breaks says so, and every pending call fails with that."""
    with ground.running() as run:
        last = run.cell.ranks - 1

        def break_it() -> None:
            with pytest.raises(EngineDeadError):
                run.face.call("collective_rpc", "dead", engine=last)

        errors, seconds = _errors_after(run, last, break_it)
        assert {type(error) for error in errors} == {EngineDeadError}
        assert {error.engine for error in errors} == {last}
        assert seconds <= BUDGET_SECONDS


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


def _errors_after(run: Running, rank: int, act: Callable[[], object]) -> tuple[list[Any], float]:
    """Return how everything fails that an engine owes, and how long after the act."""
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
        return errors, time.monotonic() - began
