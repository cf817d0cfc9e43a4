"""Leader election on a virtual clock, against a Lease with optimistic locking."""

import copy
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from enginecore_operator.kube.errors import (
    AlreadyExistsError,
    ConflictError,
    NotFoundError,
    UnreachableError,
)
from enginecore_operator.kube.lease import Elector

pytestmark = pytest.mark.filterwarnings("error")


class World:
    """One clock and the API server's one Lease."""

    def __init__(self) -> None:
        self.time = 0.0
        self.lease: dict[str, Any] | None = None
        self.version = 0
        self.down = False
        self.served: list[float] = []

    def elector(self, identity: str) -> Elector:
        start = datetime(2026, 1, 1, tzinfo=UTC)
        return Elector(
            "ns",
            "lease",
            identity,
            clock=lambda: self.time,
            now=lambda: start + timedelta(seconds=self.time),
            on_served=lambda: self.served.append(self.time),
        )

    async def read(self, *_: object) -> dict[str, Any]:
        self._check()
        if self.lease is None:
            raise NotFoundError(404, "NotFound", "no lease")
        return copy.deepcopy(self.lease)

    async def create(self, _: object, manifest: dict[str, Any], *, fenced: bool) -> dict[str, Any]:
        self._check()
        assert not fenced
        if self.lease is not None:
            raise AlreadyExistsError(409, "AlreadyExists", "there is one")
        return self._store(manifest)

    async def replace(self, _: object, manifest: dict[str, Any]) -> dict[str, Any]:
        self._check()
        if self.lease is None:
            raise NotFoundError(404, "NotFound", "no lease")
        if manifest["metadata"]["resourceVersion"] != str(self.version):
            raise ConflictError(409, "Conflict", "another version")
        return self._store(manifest)

    def _check(self) -> None:
        if self.down:
            raise UnreachableError("down")

    def _store(self, manifest: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        meta = {**manifest["metadata"], "resourceVersion": str(self.version)}
        self.lease = copy.deepcopy({**manifest, "metadata": meta})
        return copy.deepcopy(self.lease)


@pytest.fixture
def world() -> World:
    return World()


async def test_only_one_leads(world: World) -> None:
    first, second = world.elector("a"), world.elector("b")
    assert await first.attempt(world)  # type: ignore[arg-type]
    for _ in range(20):
        world.time += 2
        assert await first.attempt(world)  # type: ignore[arg-type]
        assert not await second.attempt(world)  # type: ignore[arg-type]
    assert not second.may_write()


async def test_no_write_after_the_renew_deadline(world: World) -> None:
    elector = world.elector("a")
    await elector.attempt(world)  # type: ignore[arg-type]
    world.down = True
    world.time = 5.9
    assert await elector.attempt(world)  # type: ignore[arg-type]
    world.time = 6.0
    assert not elector.may_write()
    assert not await elector.attempt(world)  # type: ignore[arg-type]


async def test_every_answer_is_told_and_silence_is_not(world: World) -> None:
    first, second = world.elector("a"), world.elector("b")
    for world.time in (0.0, 2.0):
        await first.attempt(world)  # type: ignore[arg-type]
    world.time = 3.0
    await second.attempt(world)  # type: ignore[arg-type]
    world.down, world.time = True, 4.0
    await first.attempt(world)  # type: ignore[arg-type]
    assert world.served == [0.0, 2.0, 3.0]


async def test_abandoned_lease_is_taken_after_its_duration(world: World) -> None:
    first, second = world.elector("a"), world.elector("b")
    await first.attempt(world)  # type: ignore[arg-type]
    assert not await second.attempt(world)  # type: ignore[arg-type]
    world.time = 9.9
    assert not await second.attempt(world)  # type: ignore[arg-type]
    assert not first.may_write()
    world.time = 10.0
    assert await second.attempt(world)  # type: ignore[arg-type]
    assert not await first.attempt(world)  # type: ignore[arg-type]
    assert world.lease is not None
    assert world.lease["spec"]["holderIdentity"] == "b"
    assert world.lease["spec"]["leaseTransitions"] == 2


async def test_clock_of_the_holder_does_not_count(world: World) -> None:
    """A holder whose time of day is far off is judged by whether it renews."""
    world.time = 1000.0
    first = world.elector("a")
    await first.attempt(world)  # type: ignore[arg-type]
    assert world.lease is not None
    world.lease["spec"]["renewTime"] = "1999-01-01T00:00:00.000000Z"
    assert not await world.elector("b").attempt(world)  # type: ignore[arg-type]


async def test_released_lease_is_taken_at_once(world: World) -> None:
    first, second = world.elector("a"), world.elector("b")
    await first.attempt(world)  # type: ignore[arg-type]
    await first.release(world)  # type: ignore[arg-type]
    assert not first.may_write()
    assert await second.attempt(world)  # type: ignore[arg-type]


async def test_deleted_lease_is_made_anew(world: World) -> None:
    elector = world.elector("a")
    await elector.attempt(world)  # type: ignore[arg-type]
    world.lease = None
    world.time = 2
    assert await elector.attempt(world)  # type: ignore[arg-type]


async def test_lost_race(world: World) -> None:
    first, second = world.elector("a"), world.elector("b")
    await first.attempt(world)  # type: ignore[arg-type]
    await first.release(world)  # type: ignore[arg-type]
    read = world.read

    async def read_then_lose(*arguments: object) -> dict[str, Any]:
        lease = await read(*arguments)
        world.version += 1
        return lease

    world.read = read_then_lose  # type: ignore[method-assign]
    assert not await second.attempt(world)  # type: ignore[arg-type]
