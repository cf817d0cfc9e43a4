"""The driver without sockets: what leaves together, and when a burst of messages ends."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from enginecore_client import EngineCoreRequest, SamplingParams
from enginecore_client._addresses.addresses import ClientAddresses
from enginecore_client._addresses.sources import StaticSource
from enginecore_client._core.books import Ids
from enginecore_client._core.core import ClientCore, CoreSettings
from enginecore_client._core.native_options import Facts, NativeOptions
from enginecore_client._core.native_transport import NativeTransport
from enginecore_client._core.states import Channel
from enginecore_client._metrics import NoMetrics
from enginecore_client._shell.driver import TOGETHER, Driver
from enginecore_client._sockets.resources import BURST_BYTES, Callbacks, Watcher
from enginecore_wire.outputs import EngineCoreOutput, EngineCoreOutputs
from enginecore_wire.requests import RequestType
from support.memory_link import Counting
from support.native_link import FACTS

OWN = {"mode": "bind", "input_address": "tcp://*:1", "output_address": "tcp://*:2"}


class Turns:
    """A loop whose turns end when a test says so."""

    turns = True

    def __init__(self) -> None:
        self.later: deque[Callable[[], None]] = deque()

    def watch(self, socket: Any, callback: Callable[[], None]) -> None: ...

    def unwatch(self, socket: Any) -> None: ...

    def again(self, callback: Callable[[], None]) -> None:
        self.later.append(callback)

    def end_turn(self) -> None:
        for _ in range(len(self.later)):
            self.later.popleft()()


class MemorySockets:
    """Keeps what is sent, and has what a test put there."""

    def __init__(self) -> None:
        self.link = 0
        self.sent: list[bytes] = []
        self.arrived: deque[list[bytes]] = deque()
        self.announced: list[bytes] = []

    def make(self, watcher: Watcher, callbacks: Callbacks) -> "MemorySockets":
        return self

    def open(
        self, link: int, routing_id: bytes, addresses: tuple[str, str], server_key: str = ""
    ) -> None:
        self.link = link

    def close(self, link: int, *, farewell: bool) -> None: ...

    def sources(self) -> list[int]:
        return [0]

    def messages(self, source: int) -> Iterator[tuple[int, Channel, list[Any]]]:
        while self.announced:
            yield self.link, Channel.INPUT, [self.announced.pop()]
        while self.arrived:
            yield self.link, Channel.OUTPUT, self.arrived.popleft()

    def changes(self, source: int, channel: Channel) -> Iterator[tuple[int, bool]]:
        return iter(())

    def send(self, link: int, channel: Channel, frames: list[Any]) -> bool:
        self.sent.append(frames[0])
        return True

    def subscribe(self, address: str | None, server_key: str = "") -> None: ...

    def announce(self, message: bytes) -> None: ...

    def loads(self) -> Iterator[list[Any]]:
        return iter(())

    def close_all(self, *, farewell: bool = True) -> None: ...


class Items(list[Any]):
    """A stream's end in the client."""

    put = list.append


class Setup:
    """A driver whose one engine is ready; `early`: it dialled in before the driver began."""

    def __init__(self, *, early: bool = False) -> None:
        self.turns, self.sockets = Turns(), MemorySockets()
        transport = NativeTransport((0,), Facts(0, NativeOptions()), 77)
        core = ClientCore(CoreSettings(), Ids(Counting()), lambda: 7e8, 0.0, transport)
        self.driver = Driver(
            core,
            StaticSource(ClientAddresses.from_dict(OWN)),
            NoMetrics(),
            None,  # type: ignore[arg-type] - nothing is queued
            self.turns,
            lambda callback: callback(),
            clock=lambda: 0.0,
            make_sockets=self.sockets.make,
        )
        self.sockets.announced += [msgspec.msgpack.encode(FACTS)] * early
        self.driver.start()
        self.sockets.announced += [msgspec.msgpack.encode(FACTS)] * (not early)
        self.driver.tick()

    def add(self, sink: Any = None) -> Any:
        request = EngineCoreRequest("r", [1], sampling_params=SamplingParams())
        return self.driver.add(request, Items() if sink is None else sink, None, retry=False)


def test_the_first_request_of_a_turn_leaves_at_once_and_the_others_at_its_end() -> None:
    setup = Setup()
    for count in (1, 1, 1):
        setup.add()
        assert len(setup.sockets.sent) == count
    setup.turns.end_turn()
    assert len(setup.sockets.sent) == 3
    setup.turns.end_turn()
    setup.add()
    assert len(setup.sockets.sent) == 4


def test_a_turn_without_an_end_holds_no_more_than_a_few() -> None:
    setup = Setup()
    for _ in range(3 * TOGETHER):
        setup.add()
    assert 3 * TOGETHER - len(setup.sockets.sent) < TOGETHER


def test_an_abort_follows_the_requests_that_wait() -> None:
    setup = Setup()
    setup.add()
    record = setup.add()
    setup.driver.abort_record(record)
    assert setup.sockets.sent == [RequestType.ADD, RequestType.ADD, RequestType.ABORT]


def test_time_that_passes_sends_what_a_closed_loop_never_did() -> None:
    setup = Setup()
    setup.add()
    setup.add()
    setup.turns.later.clear()
    setup.driver.tick()
    assert len(setup.sockets.sent) == 2
    setup.add()
    assert len(setup.sockets.sent) == 3


def test_a_burst_ends_by_bytes_and_goes_on_after_others_had_their_turn() -> None:
    setup, items = Setup(), Items()
    record = setup.add(items)
    setup.turns.end_turn()
    padding = {"padding": "x" * (BURST_BYTES // 2)}
    output = EngineCoreOutput(record.internal_id, [7], trace_headers=padding)
    body = msgspec.msgpack.encode(EngineCoreOutputs(outputs=[output]))
    setup.sockets.arrived.extend([body] for _ in range(5))
    for count in (2, 4, 5):
        setup.driver.drain(0) if count == 2 else setup.turns.end_turn()
        assert len(items) == count
    setup.turns.end_turn()
    assert not setup.turns.later


def test_an_engine_that_dialled_in_before_the_client_began_is_used() -> None:
    setup = Setup(early=True)
    setup.add()
    assert setup.sockets.sent == [RequestType.ADD]
