"""Real vLLM engines for the contract suite: those that other tests share, and ones of its own."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from enginecore_client import EngineCommand, NativeOptions
from enginecore_client.testing.behaviours import Ground
from enginecore_client.testing.cells import VLLM, Way
from enginecore_client.testing.deployments import CLIENT_CLASSES, Deployment, Launched, balanced
from enginecore_client.testing.engines import EngineUnderTest, Trait
from enginecore_client.testing.faces import AsyncFace, Face, SyncFace
from enginecore_client.testing.suite import Place
from support.vllm_engines import RANKS, EngineRoom, EngineSet, vllm_command
from support.vllm_pod import START_SECONDS

SETS: Final = {Way.CONNECT: "pods", Way.BIND: "native"}
"""Which of the shared sets clients reach in which way."""

FIRST_NUMBER: Final = 2
"""Clients before this one of a set belong to other tests."""

VLLM_ENGINE: Final = EngineUnderTest(
    name=VLLM,
    command=EngineCommand(("vllm", "{port}")),
    vocab_size=49152,
    long_tokens=900,
    start_seconds=START_SECONDS,
    sharing=RANKS,
    traits=frozenset({Trait.REPEATABLE, Trait.ECHOES, Trait.REPEATS_TRACE}),
)
"""What tests are made from; the command that starts one is only known where vLLM is built."""


class SharedVllm:
    """Clients of a set of engines that stay (a `Deployment`)."""

    def __init__(self, engines: EngineSet) -> None:
        self._engines = engines
        self._numbers = itertools.count(FIRST_NUMBER)

    def connect(self, client: str, **options: Any) -> Face:
        """Connect one more client; there is a place for six of them."""
        given = self._engines.options(next(self._numbers))
        addresses = given.pop("client_addresses")
        if "native" in given:
            given["native"] = NativeOptions(**given["native"])
        face: Callable[..., Face] = SyncFace if client == "SyncMPClient" else AsyncFace
        given |= {"ready_timeout": START_SECONDS} | balanced(client) | options
        return face(addresses, CLIENT_CLASSES[client], **given)

    def processes(self, rank: int) -> list[int]:
        """Return the process of an engine."""
        return [self._engines.engine_pid(rank)]

    def terminate(self, rank: int) -> None:
        """Refuse: other tests use them."""
        raise NotImplementedError(f"engine {rank} is shared")

    def close(self) -> None:
        """Leave them running."""


class VllmDeployments:
    """Where the suite finds running engines, in the place of its own `Deployments`."""

    def __init__(self, room: EngineRoom) -> None:
        self._room = room
        self._shared: dict[EngineSet, SharedVllm] = {}

    def get(self, place: Place) -> Deployment:
        """Return the engines of a place, started now unless they run."""
        way = place.cell.way
        if way is Way.LAUNCH:
            return Launched(self.engine(), place.cell.ranks, CLIENT_CLASSES)
        engines = self._room.get(SETS[way])
        return self._shared.setdefault(engines, SharedVllm(engines))

    def ground(self, place: Place) -> Ground:
        """Return where a behaviour starts engines of its own."""
        if place.cell.way is Way.LAUNCH:
            return Ground(place.cell, self.engine(), CLIENT_CLASSES, None)
        return Ground(place.cell, VLLM_ENGINE, CLIENT_CLASSES, self.get(place))

    def engine(self) -> EngineUnderTest:
        """Return what is known of vLLM, with commands; no other engine runs any more.

        A machine for tests has room for two of them.
        """
        self._room.clear()
        command = vllm_command(self._room.python, self._room.model)
        broken = vllm_command(self._room.python, self._room.model / "nothing-here")
        return replace(VLLM_ENGINE, command=command, broken=broken)
