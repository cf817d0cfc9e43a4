"""The contract suite as pytest tests: a class for each cell, a test for each behaviour.

A test module says which engines it is about:

    from enginecore_client.testing.suite import contract_tests

    globals().update(contract_tests([MY_ENGINE]))
"""

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Final, NamedTuple, TypeVar

import pytest
from prometheus_client import CollectorRegistry

from enginecore_client.testing.behaviours import (
    OWN,
    SHARED,
    Behaviour,
    Ground,
    Running,
)
from enginecore_client.testing.cells import Cell, Way, cells_of
from enginecore_client.testing.deployments import (
    CLIENT_CLASSES,
    Deployment,
    Makes,
    deploy,
)
from enginecore_client.testing.engines import EngineUnderTest

SERVER: Final = "enginecore_server"

T = TypeVar("T")


class Place(NamedTuple):
    """A cell and its engine, as the tests' parameter."""

    cell: Cell
    engine: EngineUnderTest
    neighbours: tuple[str, ...]
    makes: Makes


class Deployments:
    """Engines that the cells of a module share; at most one set of them runs at a time."""

    def __init__(self) -> None:
        self._key: Any = None
        self._running: Deployment | None = None

    def get(self, place: Place) -> Deployment:
        """Return the engines of a place, started now unless they run."""
        cell = place.cell
        key = cell.engine, cell.way, cell.ranks
        if self._running is None or key != self._key:
            self.close()
            self._running = deploy(place.engine, cell, place.makes, clients=place.neighbours)
            self._key = key
        return self._running

    def close(self) -> None:
        """End the engines that run."""
        running, self._running = self._running, None
        if running is not None:
            running.close()


@pytest.fixture(scope="module")
def deployments() -> Iterator[Deployments]:
    """Engines that the cells of this module share."""
    kept = Deployments()
    yield kept
    kept.close()


@pytest.fixture(scope="class")
def running(request: pytest.FixtureRequest, deployments: Deployments) -> Iterator[Running]:
    """The client of a cell, and engines that it shares with its neighbours."""
    place: Place = request.cls.place
    registry = CollectorRegistry()
    deployment = deployments.get(place)
    face = deployment.connect(place.cell.client, registry=registry)
    running = Running(place.cell, place.engine, face, deployment, registry)
    try:
        assert running.serves()  # then every engine has dialled, and no test gets the blame for it
        yield running
    finally:
        face.close()


@pytest.fixture(scope="class")
def ground(request: pytest.FixtureRequest, deployments: Deployments) -> Ground:
    """Where a behaviour of a cell starts engines of its own."""
    place: Place = request.cls.place
    lent = deployments.get(place) if place.cell.way is Way.CONNECT else None
    return Ground(place.cell, place.engine, place.makes, lent)


class ContractTests:
    """The tests of one cell.

    Attributes:
        place: the cell.
        shared, own: what is asked in it.
    """

    place: ClassVar[Place]
    shared: ClassVar[Sequence[Behaviour[Running]]]
    own: ClassVar[Sequence[Behaviour[Ground]]]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Spread each test over the behaviours that are asked here."""
        asked = self.shared if "running" in metafunc.fixturenames else self.own
        metafunc.parametrize("behaviour", asked, ids=[each.name for each in asked])

    def test_together(self, running: Running, behaviour: Behaviour[Running]) -> None:
        """A behaviour of a client and engines that other behaviours use, too."""
        behaviour.run(running)
        running.wait_forgotten()

    def test_alone(self, ground: Ground, behaviour: Behaviour[Ground]) -> None:
        """A behaviour that starts engines of its own."""
        behaviour.run(ground)


def contract_tests(
    engines: Sequence[EngineUnderTest],
    makes: Makes | None = None,
    asks: Callable[[Cell, str], bool] = lambda _cell, _behaviour: True,
) -> dict[str, Any]:
    """Return what a test module needs in its namespace: a class for each cell.

    Args:
        engines: which engines the module is about.
        makes: classes of clients in place of the usual ones, by the table's names; other
            clients are then left out.
        asks: whether a behaviour (its name) is asked in a cell, where it applies.
    """
    places = [place for engine in engines for place in places_of(engine, makes)]
    names: dict[str, Any] = {
        "deployments": deployments,
        "running": running,
        "ground": ground,
    }
    for place in places:
        names[f"Test{place.cell.name}"] = _tests_of(place, asks)
    return names


def _tests_of(place: Place, asks: Callable[[Cell, str], bool]) -> type[ContractTests]:
    def asked(table: Sequence[Behaviour[T]]) -> list[Behaviour[T]]:
        cell, engine = place.cell, place.engine
        return [each for each in table if each.applies(cell, engine) and asks(cell, each.name)]

    members: dict[str, Any] = {"place": place, "shared": asked(SHARED), "own": asked(OWN)}
    if not members["own"]:
        members["test_alone"] = None
    return type(f"Test{place.cell.name}", (ContractTests,), members)


def places_of(engine: EngineUnderTest, makes: Makes | None = None) -> list[Place]:
    """Return the cells of an engine that can be tried here."""
    cells = [
        cell
        for cell in cells_of(engine.name, sharing=engine.sharing)
        if _possible(cell.way, engine) and cell.client in (makes or CLIENT_CLASSES)
    ]

    def neighbours(cell: Cell) -> tuple[str, ...]:
        return tuple(c.client for c in cells if (c.way, c.ranks) == (cell.way, cell.ranks))

    return [
        Place(cell, engine, neighbours(cell), {**CLIENT_CLASSES, **(makes or {})}) for cell in cells
    ]


def _possible(way: Way, engine: EngineUnderTest) -> bool:
    if way is Way.IN_PROCESS:
        return engine.make_core is not None
    if way is Way.CONNECT and importlib.util.find_spec(SERVER) is None:
        return False
    return engine.command is not None
