"""The driver without sockets: whose coordinator is listened to."""

import gc
from collections.abc import Callable, Iterator
from typing import Any

from enginecore_client._addresses.addresses import ClientAddresses
from enginecore_client._addresses.sources import StaticSource
from enginecore_client._core.books import Ids
from enginecore_client._core.core import ClientCore, CoreSettings
from enginecore_client._core.states import Channel
from enginecore_client._metrics import NoMetrics
from enginecore_client._shell.driver import Driver
from enginecore_client._sockets.resources import Callbacks, Watcher
from support.memory_link import Counting


class NoSockets:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.subscribed: list[str | None] = []

    def make(self, watcher: Watcher, callbacks: Callbacks) -> "NoSockets":
        return self

    def open(
        self, link: int, routing_id: bytes, addresses: tuple[str, str], server_key: str = ""
    ) -> None: ...

    def close(self, link: int, *, farewell: bool) -> None: ...

    def sources(self) -> list[int]:
        return []

    def messages(self, source: int) -> Iterator[tuple[int, Channel, list[Any]]]:
        return iter(())

    def changes(self, source: int, channel: Channel) -> Iterator[tuple[int, bool]]:
        return iter(())

    def send(self, link: int, channel: Channel, frames: list[Any]) -> bool:
        return False

    def subscribe(self, address: str | None, server_key: str = "") -> None:
        self.subscribed.append(address)

    def announce(self, message: bytes) -> None: ...

    def loads(self) -> Iterator[list[Any]]:
        return iter(())

    def close_all(self, *, farewell: bool = True) -> None: ...


class Lookups:
    """Name look-ups that end when a test says so."""

    def __init__(self) -> None:
        self.pending: list[tuple[tuple[str, ...], Callable[[Any], None]]] = []

    def __call__(self, done: Callable[[Any], None]) -> "Lookups":
        self._done = done
        return self

    def start(self, addresses: tuple[str, ...], attempt: int) -> None:
        self.pending.append((addresses, self._done))

    def end(self, index: int, result: Any) -> None:
        self.pending[index][1](result)


class Watching:
    def watch(self, socket: Any, callback: Callable[[], None]) -> None: ...

    def unwatch(self, socket: Any) -> None: ...

    def again(self, callback: Callable[[], None]) -> None: ...


def start(monkeypatch) -> tuple[Driver, NoSockets, Lookups]:
    lookups, sockets = Lookups(), NoSockets()
    monkeypatch.setattr("enginecore_client._sockets.dialer.Lookup", lookups)
    engine = {"input_address": "tcp://10.0.0.1:1", "output_address": "tcp://10.0.0.1:2"}
    addresses = ClientAddresses.from_dict(engine | {"stats_update_address": "tcp://old:5"})
    driver = Driver(
        ClientCore(CoreSettings(), Ids(Counting()), lambda: 7e8, 0.0),
        StaticSource(addresses),
        NoMetrics(),
        None,  # type: ignore[arg-type] - nothing is delivered
        Watching(),
        lambda callback: callback(),
        clock=lambda: 0.0,
        make_sockets=sockets.make,
    )
    driver.start()
    assert [pending[0] for pending in lookups.pending] == [("tcp://old:5",)]
    assert sockets.subscribed == [None]
    return driver, sockets, lookups


def move(driver: Driver, stats: str | None) -> None:
    engine = {"input_address": "tcp://10.0.0.1:1", "output_address": "tcp://10.0.0.1:2"}
    addresses = ClientAddresses.from_dict(engine | {"stats_update_address": stats})
    driver.core.set_addresses(addresses, driver.clock())
    driver.pump()


def test_slow_lookup_of_an_older_coordinator_does_not_win(monkeypatch) -> None:
    driver, sockets, lookups = start(monkeypatch)
    move(driver, "tcp://new:5")
    lookups.end(1, ("tcp://10.0.0.9:5",))
    lookups.end(0, ("tcp://10.0.0.3:5",))
    assert sockets.subscribed == [None, None, "tcp://10.0.0.9:5"]


def test_lookup_of_a_coordinator_that_is_gone_is_of_no_use(monkeypatch) -> None:
    driver, sockets, lookups = start(monkeypatch)
    move(driver, None)
    lookups.end(0, ("tcp://10.0.0.3:5",))
    assert sockets.subscribed == [None, None, None]


def test_lookup_of_an_older_attempt_is_of_no_use(monkeypatch) -> None:
    driver, sockets, lookups = start(monkeypatch)
    driver.core._fleet.subscribe_again()
    driver.pump()
    assert len(lookups.pending) == 2
    lookups.end(0, ("tcp://10.0.0.3:5",))
    assert sockets.subscribed == [None, None]
    lookups.end(1, ("tcp://10.0.0.4:5",))
    assert sockets.subscribed == [None, None, "tcp://10.0.0.4:5"]


def test_an_address_at_which_no_coordinator_is_is_told(monkeypatch, caplog) -> None:
    driver, _, _ = start(monkeypatch)
    for seconds in (1.0, 12.5, 25.0):
        driver.clock = lambda seconds=seconds: seconds
        driver.tick()
    (record,) = caplog.records
    assert "no report came from the coordinator at tcp://old:5 for 12 s" in record.message


def test_the_garbage_collector_rests_while_messages_are_read(monkeypatch) -> None:
    driver, sockets, _ = start(monkeypatch)
    seen: list[bool] = []

    def messages(source: int) -> Iterator[tuple[int, Channel, list[Any]]]:
        seen.append(gc.isenabled())
        return iter(())

    monkeypatch.setattr(sockets, "messages", messages)
    driver.drain(0)
    assert (seen, gc.isenabled()) == ([False], True)
