"""Waves: what each message does, and that no request waits for ever, whatever the order."""

import random
from collections import deque

import msgspec
import pytest

from enginecore_client._core.waves import Waves
from enginecore_coordinator.waves import NOTHING, Effect, Wake, WaveBook
from enginecore_wire.coordination import LAST_WAVE, FirstRequest

ENGINES = 3


def book(*steps: tuple[str, int]) -> WaveBook:
    waves = WaveBook(lockstep=True)
    for name, wave in steps:
        getattr(waves, name)(wave)
    return waves


EFFECTS = [
    ("first request wakes all", book(), ("first_request", 0), Effect(Wake(0))),
    (
        "and again until rank 0 says that they run",
        book(("first_request", 0)),
        ("first_request", 0),
        Effect(Wake(0)),
    ),
    ("no wake while they run", book(("started", 0)), ("first_request", 0), NOTHING),
    (
        "wakes into the wave that comes",
        book(("completed", 4)),
        ("first_request", 3),
        Effect(Wake(5)),
    ),
    ("started again, a client knows", book(), ("first_request", 6), Effect(Wake(6))),
    ("an end is told", book(("started", 2)), ("completed", 2), Effect(publish=True)),
    ("an end nobody knew of", book(), ("completed", 7), Effect(publish=True)),
    ("an end that is known", book(("completed", 2)), ("completed", 2), NOTHING),
    ("a start wakes the others", book(), ("started", 0), Effect(Wake(0), publish=True)),
    (
        "a start of a later wave",
        book(("started", 1)),
        ("started", 3),
        Effect(Wake(3), publish=True),
    ),
    ("a start that is known", book(("started", 1)), ("started", 1), NOTHING),
    ("a start that is over", book(("completed", 1)), ("started", 1), NOTHING),
]


@pytest.mark.parametrize(
    ("waves", "message", "effect"), [r[1:] for r in EFFECTS], ids=[r[0] for r in EFFECTS]
)
def test_effect(waves: WaveBook, message, effect: Effect) -> None:
    name, *arguments = message
    assert getattr(waves, name)(*arguments) == effect


@pytest.mark.parametrize("name", ["first_request", "completed", "started"])
@pytest.mark.parametrize("wave", [-1, LAST_WAVE, 2**64 - 1])
def test_what_is_no_wave_changes_nothing(name: str, wave: int) -> None:
    waves = book(("started", 3))
    assert getattr(waves, name)(wave) == NOTHING
    assert (waves.wave, waves.running) == (3, True)


def test_nobody_concludes_from_a_wake_up_that_engines_run() -> None:
    waves = book(("first_request", 0), ("first_request", 2))
    assert (waves.wave, waves.running) == (2, False)


def test_independent_engines_have_no_waves() -> None:
    waves = WaveBook(lockstep=False)
    assert [waves.first_request(2), waves.started(1), waves.completed(1)] == [NOTHING] * 3
    assert (waves.wave, waves.running) == (0, False)


class Rank:
    """One engine as vLLM's does it: it steps only together with all others."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.wave = 0
        self.running = False
        self.requests = 0
        self.stepping = False

    @property
    def wants_step(self) -> bool:
        return self.running or self.requests > 0

    def add(self, wave: int) -> list[tuple[str, int]]:
        said = []
        if wave > self.wave:
            self.wave = wave
        elif wave < self.wave and not self.running:
            self.running = True
            said = [("started", self.wave)]
        self.requests += 1
        return said

    def start(self, wave: int) -> list[tuple[str, int]]:
        if wave < self.wave:
            return []
        self.wave = wave
        news = not self.running and self.rank == 0
        self.running = True
        return [("started", self.wave)] if news else []


class World:
    """Clients, the coordinator and engines, joined by channels that deliver in any interleaving."""

    def __init__(self, seed: int, requests: int) -> None:
        self.random = random.Random(seed)
        self.book = WaveBook(lockstep=True)
        self.clients = [Waves(lockstep=True) for _ in range(2)]
        self.ranks = [Rank(rank) for rank in range(ENGINES)]
        self.left = requests
        self.finished = 0
        pairs = [(c, r) for c in range(len(self.clients)) for r in range(ENGINES)]
        self.adds: dict[tuple[int, int], deque[int]] = {pair: deque() for pair in pairs}
        self.up: list[deque[bytes]] = [deque() for _ in self.clients]
        self.down: list[deque[tuple[int, bool]]] = [deque() for _ in self.clients]
        self.wakes: list[deque[int]] = [deque() for _ in self.ranks]
        self.said: list[deque[tuple[str, int]]] = [deque() for _ in self.ranks]

    def moves(self) -> list:
        found = []
        if self.left:
            found.append(self.client_adds)
        found += [lambda p=p: self.engine_adds(*p) for p, q in self.adds.items()
                  if q and not self.ranks[p[1]].stepping]  # fmt: skip
        found += [lambda c=c: self.first_request(c) for c, q in enumerate(self.up) if q]
        found += [lambda c=c: self.publish(c) for c, q in enumerate(self.down) if q]
        found += [lambda r=r: self.wake(r) for r, q in enumerate(self.wakes)
                  if q and not self.ranks[r].stepping]  # fmt: skip
        found += [lambda r=r: self.hear(r) for r, q in enumerate(self.said) if q]
        found += [lambda r=r: self.step(r) for r in self.ranks if r.wants_step and not r.stepping]
        return found

    def client_adds(self) -> None:
        self.left -= 1
        client, rank = self.random.randrange(len(self.clients)), self.random.randrange(ENGINES)
        waves = self.clients[client]
        self.adds[client, rank].append(waves.current_wave)
        first = waves.added(rank, 0.0)
        if first is not None:
            self.up[client].append(first)

    def engine_adds(self, client: int, rank: int) -> None:
        engine = self.ranks[rank]
        self.said[rank] += engine.add(self.adds[client, rank].popleft())
        if self.random.random() < 0.3:  # aborted before it ran
            engine.requests -= 1
            self.finished += 1

    def first_request(self, client: int) -> None:
        said = msgspec.msgpack.decode(self.up[client].popleft(), type=FirstRequest)
        self.follow(self.book.first_request(said.wave))

    def publish(self, client: int) -> None:
        self.clients[client].published(*self.down[client].popleft())

    def wake(self, rank: int) -> None:
        self.said[rank] += self.ranks[rank].start(self.wakes[rank].popleft())

    def hear(self, rank: int) -> None:
        name, wave = self.said[rank].popleft()
        self.follow(getattr(self.book, name)(wave))

    def follow(self, effect: Effect) -> None:
        if effect.wake is not None:
            for wakes in self.wakes:
                wakes.append(effect.wake.wave)
        if effect.publish:
            self.tell_clients()

    def tell_clients(self) -> None:
        for down in self.down:
            down.append((self.book.wave, self.book.running))

    def step(self, rank: Rank) -> None:
        """Enter the step; it is done once all are in it, and until then hears nothing."""
        rank.stepping = True
        if not all(each.stepping for each in self.ranks):
            return
        for each in self.ranks:
            each.stepping = False
            if each.requests and self.random.random() < 0.5:
                each.requests -= 1
                self.finished += 1
        if any(each.requests for each in self.ranks):
            for each in self.ranks:
                each.running = True
            return
        self.said[0].append(("completed", self.ranks[0].wave))
        for each in self.ranks:
            each.running = False
            each.wave += 1


@pytest.mark.parametrize("forgets", [False, True], ids=["lives", "starts again"])
@pytest.mark.parametrize("seed", range(300))
def test_no_request_waits_for_ever(seed: int, forgets: bool) -> None:
    requests = 12
    world = World(seed, requests)
    for turn in range(20_000):
        moves = world.moves()
        if not moves:
            break
        world.random.choice(moves)()
        if forgets and turn == 60:
            world.book = WaveBook(lockstep=True)
            world.tell_clients()
    assert not world.moves()
    assert world.finished == requests
    assert all(not rank.wants_step for rank in world.ranks)
    assert len({rank.wave for rank in world.ranks}) == 1
    if not forgets:
        assert world.book.wave == world.ranks[0].wave
        assert not world.book.running
