"""Engines that do not come up."""

import time
from dataclasses import replace
from typing import Final, NoReturn

import pytest

from enginecore_client.errors import EngineStartupError, StartupTimeoutError
from enginecore_client.testing._holdings import nothing_beyond, own_holdings
from enginecore_client.testing._waiting import eventually
from enginecore_client.testing.behaviours._registry import Ground, own
from enginecore_client.testing.cells import Way

READY_SECONDS: Final = 1.5
SLACK_SECONDS: Final = 5.0


@own(ways=frozenset({Way.LAUNCH}))
def failed_start_is_told(ground: Ground) -> None:
    """An engine that ends before it is ready ends the client's start, with rank and words."""
    before = own_holdings()
    broken = replace(ground.engine, command=ground.engine.broken)
    with ground.deployed(broken) as deployment:
        with pytest.raises(EngineStartupError, match="the engine of rank") as failed:
            deployment.connect(ground.cell.client)
        assert failed.value.engine in range(ground.cell.ranks)
    eventually(lambda: nothing_beyond(before), "nothing is left")


@own(ways=frozenset({Way.CONNECT, Way.BIND}))
def absent_engine_is_named(ground: Ground) -> None:
    """Waiting for an engine that does not come up ends at the deadline, which names its rank."""
    broken = replace(ground.engine, command=ground.engine.broken, server=None)
    with ground.deployed(broken, ready=False) as deployment:
        before = own_holdings()
        began = time.monotonic()
        with pytest.raises(StartupTimeoutError) as expired:
            deployment.connect(ground.cell.client, ready_timeout=READY_SECONDS)
        assert READY_SECONDS <= time.monotonic() - began < READY_SECONDS + SLACK_SECONDS
        for rank in range(ground.cell.ranks):
            assert f"rank {rank} at " in str(expired.value)
        eventually(lambda: nothing_beyond(before), "nothing is left")


@own(ways=frozenset({Way.IN_PROCESS}))
def failure_to_make_is_raised(ground: Ground) -> None:
    """What keeps an engine in this process from being made is raised as it is."""

    def make() -> NoReturn:
        raise FileNotFoundError("there is no model")

    with (
        ground.deployed(replace(ground.engine, make_core=make)) as deployment,
        pytest.raises(FileNotFoundError, match="there is no model"),
    ):
        deployment.connect(ground.cell.client)
