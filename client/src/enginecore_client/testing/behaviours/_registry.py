"""How a behaviour is declared, and what it gets when it is tried."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from prometheus_client import CollectorRegistry

from enginecore_client.testing._waiting import eventually
from enginecore_client.testing.cells import Cell, Way
from enginecore_client.testing.deployments import Deployment, Makes, deploy
from enginecore_client.testing.engines import EngineUnderTest, Trait
from enginecore_client.testing.faces import Face, params
from enginecore_wire.outputs import EngineCoreOutput
from enginecore_wire.requests import EngineCoreRequest, SamplingParams

PROMPT: Final = (7, 11, 13)
OUTSIDE: Final = frozenset({Way.CONNECT, Way.BIND, Way.LAUNCH})
EVERYWHERE: Final = frozenset(Way)

ANY: Final = range(1, 1 << 16)
ONE: Final = range(1, 2)
SEVERAL: Final = range(2, 1 << 16)

IN_FLIGHT: Final = "enginecore_client_requests_in_flight"
LOAD: Final = "enginecore_client_engine_load"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Running:
    """A connected client of running engines.

    Attributes:
        cell: which square of the table this is.
        engine: what is known of its engines.
        face: the client.
        deployment: the engines.
        registry: where the client exports its metrics.
    """

    cell: Cell
    engine: EngineUnderTest
    face: Face
    deployment: Deployment
    registry: CollectorRegistry

    @property
    def long(self) -> SamplingParams:
        """Sampling of a request that outlives what is done to it."""
        return params(self.engine.long_tokens)

    def placed(self, rank: int) -> dict[str, Any]:
        """Return the options of a stream for an engine, where there are several."""
        return {"data_parallel_rank": rank} if self.cell.ranks > 1 else {}

    def read(self, max_tokens: int, prompt: Sequence[int] = PROMPT, **options: Any) -> list[int]:
        """Return the tokens of one request."""
        return tokens(self.face.generate(list(prompt), params(max_tokens), **options))

    def collect(self, *requests: EngineCoreRequest) -> dict[str, list[EngineCoreOutput]]:
        """Add requests; return the outputs of each, read to its end."""
        for request in requests:
            self.face.add(request)
        return self.finish([request.request_id for request in requests])

    def finish(
        self, names: Sequence[str], aborted: Sequence[str] = ()
    ) -> dict[str, list[EngineCoreOutput]]:
        """Read until all that were added under these names have ended; return their outputs.

        Args:
            names: of the requests.
            aborted: of others, whose outputs may still come.
        """
        found: dict[str, list[EngineCoreOutput]] = {name: [] for name in names}
        left = set(names)
        while left:
            for output in self.face.get_output().outputs:
                if output.request_id in aborted:
                    continue
                assert output.request_id in left, f"an output of {output.request_id!r}"
                found[output.request_id].append(output)
                if output.finish_reason is not None:
                    left.discard(output.request_id)
        return found

    def drop(self, *names: str) -> None:
        """Abort what was added, and read what came of it before."""
        self.face.abort(names)
        markers = [f"after-{rank}" for rank in range(self.cell.ranks)]
        for rank, marker in enumerate(markers):
            self.face.add(request(marker, 1, data_parallel_rank=rank))
        self.finish(markers, aborted=names)

    def serves(self) -> bool:
        """Say whether every engine answers a request."""
        return all(len(self.read(4, **self.placed(r))) == 4 for r in range(self.cell.ranks))

    def wait_idle(self) -> None:
        """Return once no engine holds a block for a request any more."""
        eventually(lambda: self.face.call("reset_prefix_cache") is True, "engines are idle")

    def wait_seen(self, *, busy: bool) -> None:
        """Return once the client chooses by the loads of busy, or of idle, engines.

        Who saw them busy and then idle will not hear of what they had before any more.
        """
        ranks = range(self.cell.ranks)
        eventually(
            lambda: all(bool(self.gauge(LOAD, rank)) is busy for rank in ranks), "loads are seen"
        )

    def wait_forgotten(self) -> None:
        """Return once the client holds no request any more."""
        ranks = range(self.cell.ranks)
        eventually(lambda: not any(self.gauge(IN_FLIGHT, rank) for rank in ranks), "books empty")

    def gauge(self, name: str, rank: int = 0) -> float | None:
        """Return the value that the client exports for an engine, None if there is none."""
        for family in self.registry.collect():
            for sample in family.samples:
                if sample.name == name and sample.labels.get("engine") == str(rank):
                    return sample.value
        return None


@dataclass(frozen=True, slots=True)
class Ground:
    """Where a behaviour starts engines of its own, which may end as they like.

    Attributes:
        cell: which square of the table this is.
        engine: what is known of its engines.
        makes: makes the clients.
        lent: engines that run already and are to stay, behind engine servers.
    """

    cell: Cell
    engine: EngineUnderTest
    makes: Makes
    lent: Deployment | None

    @contextmanager
    def deployed(
        self, engine: EngineUnderTest | None = None, *, ready: bool = True
    ) -> Iterator[Deployment]:
        """Run engines for as long as the context lasts.

        Args:
            engine: another kind than this one.
            ready: whether to wait until they are.
        """
        running = deploy(engine or self.engine, self.cell, self.makes, ready=ready)
        try:
            yield running
        finally:
            running.close()

    @contextmanager
    def lasting(self) -> Iterator[Deployment]:
        """Run engines for a client that ends before them; behind engine servers they go on."""
        if self.lent is not None:
            yield self.lent
            return
        with self.deployed() as deployment:
            yield deployment

    @contextmanager
    def running(self) -> Iterator[Running]:
        """Run engines and a client of them for as long as the context lasts."""
        registry = CollectorRegistry()
        with self.deployed() as deployment:
            face = deployment.connect(self.cell.client, registry=registry)
            try:
                yield Running(self.cell, self.engine, face, deployment, registry)
            finally:
                face.close()


@dataclass(frozen=True, slots=True)
class Behaviour(Generic[T]):
    """One thing that is asked of client and engine together.

    Attributes:
        name: in test ids.
        run: asks; it gets a Running or a Ground.
        ways: where it makes sense.
        needs: traits that the engine must have.
        ranks: how many engines there may be.
    """

    name: str
    run: Callable[[T], None]
    ways: frozenset[Way]
    needs: frozenset[Trait]
    ranks: range

    @property
    def asks(self) -> str:
        """What is asked, in a sentence."""
        return (self.run.__doc__ or "").partition("\n\n")[0].replace("\n    ", " ")

    def applies(self, cell: Cell, engine: EngineUnderTest) -> bool:
        """Say whether it is asked in a square of the table."""
        return cell.way in self.ways and self.needs <= engine.traits and cell.ranks in self.ranks


SHARED: Final[list[Behaviour[Running]]] = []
"""What is asked of engines and a client that all of them share; it leaves them as they were."""

OWN: Final[list[Behaviour[Ground]]] = []
"""What is asked of engines that are started for it alone."""


def shared(
    *, ways: frozenset[Way] = EVERYWHERE, needs: frozenset[Trait] = frozenset(), ranks: range = ANY
) -> Callable[[Callable[[Running], None]], Callable[[Running], None]]:
    """Declare a behaviour of a client and engines that others use, too."""
    return _declare(SHARED, ways, needs, ranks)


def own(
    *, ways: frozenset[Way] = EVERYWHERE, needs: frozenset[Trait] = frozenset(), ranks: range = ANY
) -> Callable[[Callable[[Ground], None]], Callable[[Ground], None]]:
    """Declare a behaviour that breaks or ends what it uses."""
    return _declare(OWN, ways, needs, ranks)


def tokens(outputs: Iterator[EngineCoreOutput] | Sequence[EngineCoreOutput]) -> list[int]:
    """Return the tokens of one sequence's outputs."""
    return [token for output in outputs for token in output.new_token_ids]


def request(
    name: str, max_tokens: int, prompt: Sequence[int] = PROMPT, **fields: Any
) -> EngineCoreRequest:
    """Return a greedy request."""
    return EngineCoreRequest(name, list(prompt), sampling_params=params(max_tokens), **fields)


def _declare(
    table: list[Behaviour[T]], ways: frozenset[Way], needs: frozenset[Trait], ranks: range
) -> Callable[[Callable[[T], None]], Callable[[T], None]]:
    def declare(run: Callable[[T], None]) -> Callable[[T], None]:
        table.append(Behaviour(run.__name__, run, ways, needs, ranks))
        return run

    return declare
