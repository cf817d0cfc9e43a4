"""Which client meets which engine in which way: the table that the contract suite runs over.

docs/contract-suite.md shows it; a test holds the two to each other.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import Final, NamedTuple


class Way(StrEnum):
    """How a client reaches engines."""

    IN_PROCESS = "in process"
    """The engine is an object of this process."""

    CONNECT = "connect"
    """Each engine is behind an engine server, whose sockets the client connects to."""

    BIND = "bind"
    """The client binds, and engines that somebody else started dial in."""

    LAUNCH = "launch"
    """The client binds, and starts the engines itself."""


class Cell(NamedTuple):
    """One square of the table: `ranks` engines at a time."""

    client: str
    engine: str
    way: Way
    ranks: int

    @property
    def name(self) -> str:
        """Its name in test ids, such as `SyncMPClient_fake_bind_1`."""
        return f"{self.client}_{self.engine}_{self.way.replace(' ', '_')}_{self.ranks}"


INPROC: Final = "InprocClient"
SYNC: Final = "SyncMPClient"
ASYNC: Final = "AsyncMPClient"
BALANCED: Final = "DPLBAsyncMPClient"

MULTIPROCESS: Final = (SYNC, ASYNC, BALANCED)
WAYS: Final = (Way.CONNECT, Way.BIND, Way.LAUNCH)
BALANCED_RANKS: Final = 2


def cells_of(engine: str, *, sharing: int = 1) -> Iterator[Cell]:
    """Yield the cells of an engine.

    Args:
        engine: its name.
        sharing: how many engines clients share that do not start their own.
    """
    yield Cell(INPROC, engine, Way.IN_PROCESS, 1)
    for way in WAYS:
        for client in MULTIPROCESS:
            least = BALANCED_RANKS if client == BALANCED else 1
            yield Cell(client, engine, way, least if way is Way.LAUNCH else max(least, sharing))


FAKE: Final = "fake"
TORCH: Final = "torch"
VLLM: Final = "vllm"

CELLS: Final = (*cells_of(FAKE), *cells_of(TORCH), *cells_of(VLLM, sharing=BALANCED_RANKS))
"""All there are. An engine of vLLM takes long to start, and all clients share two of them."""
