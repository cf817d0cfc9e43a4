"""Waves of engines that step together: what a client believes and says, and that no request
is ever left waiting, whatever is lost or late."""

from random import Random
from typing import Any

import msgspec
import pytest

from enginecore_client._core.events import Delivered
from enginecore_client._core.waves import REMIND_SECONDS, Waves
from enginecore_wire.coordination import LAST_WAVE, FirstRequest, LoadReport
from enginecore_wire.requests import EngineCoreRequest, SamplingParams
from support.memory_link import MemoryLink

FIRST_REQ_OF_RANK_1_IN_WAVE_3 = bytes.fromhex("92c402010003")


def said(message: bytes | None) -> FirstRequest | None:
    return None if message is None else msgspec.msgpack.decode(message, type=FirstRequest)


def test_independent_engines_have_no_waves() -> None:
    waves = Waves(lockstep=False)
    assert waves.added(0, 0.0) is None
    waves.published(7, True)
    waves.completed(7)
    assert waves.overdue(5, 100.0) is None
    assert (waves.current_wave, waves.engines_running) == (0, False)


def test_fault_51983_the_first_request_of_a_wave_is_announced_once() -> None:
    waves = Waves(lockstep=True)
    waves.published(3, False)
    assert waves.added(1, 10.0) == FIRST_REQ_OF_RANK_1_IN_WAVE_3
    assert waves.engines_running
    assert waves.added(0, 10.1) is None
    waves.published(3, True)
    assert waves.added(0, 10.2) is None
    waves.published(4, False)
    assert said(waves.added(0, 11.0)) == FirstRequest(b"\0\0", 4)


def test_a_wave_ends_by_the_engines_own_word_too() -> None:
    waves = Waves(lockstep=True)
    waves.added(0, 0.0)
    waves.completed(0)
    assert (waves.current_wave, waves.engines_running) == (1, False)
    waves.published(5, True)
    waves.completed(2)  # late word of an old wave
    assert (waves.current_wave, waves.engines_running) == (5, True)


def test_a_coordinator_that_begins_again_is_right() -> None:
    waves = Waves(lockstep=True)
    waves.published(9, True)
    waves.published(0, False)
    assert said(waves.added(0, 0.0)) == FirstRequest(b"\0\0", 0)


@pytest.mark.parametrize("wave", [-1, LAST_WAVE + 1, 2**64 - 1])
def test_what_is_no_wave_is_ignored_as_no_request_could_carry_it(wave: int) -> None:
    waves = Waves(lockstep=True)
    waves.published(4, running=True)
    waves.published(wave, running=False)
    waves.completed(wave)
    waves.completed(LAST_WAVE)
    assert (waves.current_wave, waves.engines_running) == (4, True)


def test_it_is_said_again_until_somebody_confirms_it() -> None:
    waves = Waves(lockstep=True)
    assert waves.added(2, 0.0)
    assert waves.overdue(1, REMIND_SECONDS / 2) is None
    assert said(waves.overdue(1, REMIND_SECONDS)) == FirstRequest(b"\2\0", 0)
    assert waves.overdue(1, REMIND_SECONDS * 1.5) is None
    assert waves.overdue(0, REMIND_SECONDS * 9) is None, "nobody waits"
    assert waves.overdue(1, REMIND_SECONDS * 9)
    waves.published(0, True)
    assert waves.overdue(1, REMIND_SECONDS * 99) is None


class World:
    """Clients, a coordinator and two engines as wire.md describes them; links that lose or hold
    messages as chance will have it.

    An engine runs while it has requests or was woken; both pause together when all are idle. A
    request is computed only while both run.
    """

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.now = 0.0
        self.clients = [Waves(lockstep=True) for _ in range(2)]
        self.unfinished = [0, 0]
        self.wave, self.running = 0, False
        self.engines: list[dict[str, Any]] = [
            {"wave": 0, "running": False, "requests": []} for _ in range(2)
        ]
        self.up: list[bytes] = []
        self.down: list[tuple[int, int, bool]] = []

    def say(self, message: bytes | None) -> None:
        if message is not None and self.chance.random() > 0.3:
            self.up.append(message)

    def add(self) -> None:
        index, engine = self.chance.randrange(2), self.chance.randrange(2)
        client = self.clients[index]
        self.unfinished[index] += 1
        wave = client.current_wave
        self.say(client.added(engine, self.now))
        state = self.engines[engine]
        state["wave"] = max(state["wave"], wave)
        state["requests"].append(index)
        state["running"] = True

    def coordinate(self) -> None:
        if self.up:
            self.up.pop(self.chance.randrange(len(self.up)))
            if not self.running:
                self.running = True
                for engine in self.engines:
                    engine["running"] = True
                self.publish()

    def publish(self) -> None:
        self.down += [(i, self.wave, self.running) for i in range(2)]

    def deliver(self) -> None:
        if self.down:
            i, wave, running = self.down.pop(0)
            if self.chance.random() > 0.2:
                self.clients[i].published(wave, running)

    def compute(self) -> None:
        if all(engine["running"] for engine in self.engines):
            for engine in self.engines:
                if engine["requests"]:
                    self.unfinished[engine["requests"].pop(0)] -= 1
            if not any(engine["requests"] for engine in self.engines):
                self.wave += 1
                self.running = False
                for engine in self.engines:
                    engine.update(running=False, wave=self.wave)
                self.publish()

    def tick(self) -> None:
        self.now += 0.5
        for client, count in zip(self.clients, self.unfinished, strict=True):
            self.say(client.overdue(count, self.now))


@pytest.mark.parametrize("seed", range(200))
def test_fault_16277_no_interleaving_leaves_a_request_waiting(seed: int) -> None:
    world = World(Random(seed))
    moves = [world.add, world.coordinate, world.deliver, world.compute, world.tick]
    for _ in range(200):
        world.chance.choice(moves)()
    for turn in range(500):
        if turn % 10 == 0:
            world.publish()  # a coordinator does so every few seconds, whatever happens
        for move in moves[1:]:
            move()
    assert world.unfinished == [0, 0]


def request(name: str = "r") -> EngineCoreRequest:
    return EngineCoreRequest(name, [1, 2], sampling_params=SamplingParams(max_tokens=9))


def test_requests_carry_the_wave_and_the_coordinator_hears_of_the_first() -> None:
    link = MemoryLink("a", "b", lockstep=True)
    link.loads(LoadReport(None, 3, False))
    for name in ("x", "y"):
        link.core.requests.add(request(name), object(), link.now)
        link.run()
    (first,) = [said(message) for message in link.announced]
    sent = [add for pod in link.pods.values() for add in pod.adds]
    assert {add.current_wave for add in sent} == {3}
    assert first == FirstRequest(b"\0\0", 3)
    assert link.core.waves.engines_running
    link.wait(REMIND_SECONDS + 0.2)
    assert len(link.announced) == 2
    link.loads(LoadReport(None, 3, True))
    link.wait(3 * REMIND_SECONDS)
    assert len(link.announced) == 2


def test_a_wave_that_ended_is_read_even_by_whoever_has_no_request() -> None:
    link = MemoryLink("a", lockstep=True)
    events = link.outputs(link.pod("a"), wave_complete=4)
    (event,) = [event for event in events if isinstance(event, Delivered)]
    assert event.queued is not None
    assert event.queued.wave_complete == 4
    assert link.core.waves.current_wave == 5


def test_fault_28224_clients_of_independent_engines_announce_nothing() -> None:
    link = MemoryLink("a")
    link.loads(LoadReport(None, 3, False))
    link.core.requests.add(request(), object(), link.now)
    link.wait(3.0)
    assert link.announced == []
    assert link.pod("a").adds[0].current_wave == 0
