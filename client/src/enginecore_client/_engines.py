"""How a client reaches its engines: by their addresses, by its own, or by starting them."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from enginecore_client._addresses import ClientAddresses
from enginecore_client._books import Ids
from enginecore_client._bound import BoundSocketSet
from enginecore_client._connection import Transport
from enginecore_client._native import Facts, NativeOptions, NativeTransport
from enginecore_client._pairs import SocketSet
from enginecore_client._ranks import checked_ranks, engine_ranks
from enginecore_client._resources import Callbacks, Sockets, Watcher
from enginecore_client._sources import AddressSource, RankSource, StaticSource, source_of

Addresses = Mapping[str, Any] | str | Path | ClientAddresses | AddressSource
MakeSockets = Callable[[Watcher, Callbacks], Sockets]


class Engines(NamedTuple):
    """What a client's core and driver need to reach engines.

    `transport` None is the one for engine servers.
    """

    source: AddressSource
    transport: Transport | None
    make_sockets: MakeSockets


class EngineChoice(NamedTuple):
    """What the caller says about engines beside their addresses."""

    client_index: int
    data_parallel_size: int | None
    ranks: Sequence[int] | None
    native: NativeOptions


def find_engines(addresses: Addresses, choice: EngineChoice, ids: Ids) -> Engines:
    """Return how the engines of `client_addresses` are reached.

    Raises:
        AddressError: the addresses are wrong.
        RequestRejectedError: the choice of ranks is wrong.
    """
    bound = _bound_addresses(addresses)
    if bound is not None:
        return _bound(bound, choice, ids)
    source = source_of(addresses)
    if choice.ranks is not None:
        source = RankSource(source, choice.ranks)
    return Engines(source, None, SocketSet)


class BoundSource(StaticSource):
    """The client's own addresses, with the ports they got."""

    def bound(self, input_address: str, output_address: str) -> None:
        """Take note of where the sockets are bound."""
        assert self._addresses is not None
        self._addresses = msgspec.structs.replace(
            self._addresses, input_address=(input_address,), output_address=(output_address,)
        )

    def describe(self) -> str:
        """Return where the addresses come from."""
        return "those that dial in"


def _bound_addresses(addresses: Addresses) -> ClientAddresses | None:
    """Return the addresses to bind, None for another mode; a file is read once for that."""
    if isinstance(addresses, Mapping):
        addresses = ClientAddresses.from_dict(addresses)
    elif isinstance(addresses, str | Path):
        addresses = ClientAddresses.from_file(addresses)
    if isinstance(addresses, ClientAddresses) and addresses.mode == "bind":
        return addresses
    return None


def _bound(addresses: ClientAddresses, choice: EngineChoice, ids: Ids) -> Engines:
    source = BoundSource(addresses)

    def make_sockets(watcher: Watcher, callbacks: Callbacks) -> Sockets:
        sockets = BoundSocketSet(watcher, callbacks, addresses, time.monotonic)
        source.bound(*sockets.addresses)
        return sockets

    facts = Facts(choice.client_index, choice.native)
    transport = NativeTransport(managed_ranks(choice), facts, ids.call())
    return Engines(source, transport, make_sockets)


def managed_ranks(choice: EngineChoice) -> tuple[int, ...]:
    """Return the ranks of the engines that are expected.

    Raises:
        RequestRejectedError: they are wrong.
    """
    size = choice.data_parallel_size
    everybody = engine_ranks(1 if size is None else size)
    if choice.ranks is None:
        return tuple(everybody)
    return checked_ranks(choice.ranks, size)
