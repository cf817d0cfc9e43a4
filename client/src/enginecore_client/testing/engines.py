"""What the contract suite has to know of an engine that it is run on."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

from enginecore_client import EngineCommand
from enginecore_client.testing._pod import LOOPBACK, QUICK
from enginecore_client.testing.cells import FAKE
from enginecore_client.testing.fake_core import DEFAULT_SETTINGS, FakeEngineCore
from enginecore_client.testing.fake_engine import FakeEngine
from enginecore_wire.contract import (
    HANDSHAKE_PORT_ENV,
    ModelConfig,
    RuntimeConfig,
    ServerConfig,
)
from enginecore_wire.engine import EngineLike

MODEL_NAME: Final = "contract"
STEP_SECONDS: Final = 0.001

BROKEN: Final = EngineCommand(("sh", "-c", "echo there is no model >&2; exit 3", "{port}"))
"""An engine that cannot start."""


class Trait(StrEnum):
    """What only some engines do; behaviours that need one are not asked of others."""

    REPEATS_PROMPT = "repeats-prompt"
    """Token i of an answer is `prompt[i % len(prompt)]`."""

    REPEATABLE = "repeatable"
    """The answer to a greedy request does not depend on what runs beside it."""

    ECHOES = "echoes"
    """`collective_rpc("echo", args=(value,))` returns the value, once for each worker."""

    REPEATS_TRACE = "repeats-trace"
    """Outputs have the `trace_headers` of their request."""

    DIES_WHEN_TOLD = "dies-when-told"
    """`collective_rpc("dead")` breaks its loop, as an error in a step does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineUnderTest:
    """An engine that the suite is run on.

    Attributes:
        name: in the table of cells.
        command: starts one of its processes; None where it is only used in this process.
        make_core: makes one in this process; None where it is not used so.
        server: settings of an engine server in front of one, by rank; made of `command` if None.
        broken: a command that fails before it is ready.
        vocab_size: token ids from this one on are refused; None if nobody knows.
        long_tokens: as many take it at least half a second, and its context holds them.
        start_seconds: within which it is ready.
        sharing: how many of them clients share that do not start their own.
        traits: what it does that not every engine does.
    """

    name: str
    command: EngineCommand | None = None
    make_core: Callable[[], EngineLike] | None = None
    server: Callable[[int], ServerConfig] | None = None
    broken: EngineCommand = BROKEN
    vocab_size: int | None = None
    long_tokens: int = 900
    start_seconds: float = 60.0
    sharing: int = 1
    traits: frozenset[Trait] = frozenset()

    def server_config(self, rank: int) -> ServerConfig:
        """Return settings of an engine server with this engine behind it."""
        if self.server is not None:
            return self.server(rank)
        assert self.command is not None
        return config_of(self.command, rank, self.vocab_size)


def config_of(command: EngineCommand, rank: int, vocab_size: int | None) -> ServerConfig:
    """Return settings of an engine server on loopback that starts its engine by a command."""
    place = f"$({HANDSHAKE_PORT_ENV})"
    dialling = tuple(word.replace("{port}", place) for word in command.command)
    # Whatever its rank is outside, an engine is alone in its pod.
    words = msgspec.structs.replace(command, command=dialling).words("127.0.0.1", 0, 0, 1)
    variables = [f"{name}={value}" for name, value in command.env.items()]
    return ServerConfig(
        name=f"{MODEL_NAME}-{rank}",
        model=ModelConfig(path=MODEL_NAME, served_name=MODEL_NAME, vocab_size=vocab_size),
        runtime=RuntimeConfig(type="custom", command=["env", *variables, *words]),
        rank=rank,
        transport=LOOPBACK,
        liveness=QUICK,
    )


def fake_core() -> FakeEngineCore:
    """Return a fake engine for this process, whose steps take a while."""
    core = FakeEngineCore()
    core.before_step = lambda: time.sleep(STEP_SECONDS)
    return core


FAKE_ENGINE: Final = EngineUnderTest(
    name=FAKE,
    command=FakeEngine.command("--token-seconds", str(STEP_SECONDS)),
    make_core=fake_core,
    broken=FakeEngine.command("--fail", "load"),
    vocab_size=DEFAULT_SETTINGS.vocab_size,
    long_tokens=2000,
    traits=frozenset(Trait),
)
"""The engine without a model that this package brings along."""
