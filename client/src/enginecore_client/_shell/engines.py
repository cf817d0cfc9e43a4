"""How a client reaches its engines: by their addresses, by its own, or by starting them."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from enginecore_client._addresses.addresses import ClientAddresses
from enginecore_client._addresses.sources import AddressSource, RankSource, StaticSource, source_of
from enginecore_client._core.books import Ids
from enginecore_client._core.connection import Transport
from enginecore_client._core.native_options import Facts, NativeOptions, check_options
from enginecore_client._core.native_transport import NativeTransport
from enginecore_client._core.ranks import checked_ranks, engine_ranks, started_ranks
from enginecore_client._launch.command import EngineCommand, LaunchOptions, check_launch, command_of
from enginecore_client._launch.plan import LaunchPlan
from enginecore_client._sockets.bound import BoundSocketSet
from enginecore_client._sockets.own_key import OwnKey
from enginecore_client._sockets.pairs import SocketSet
from enginecore_client._sockets.resources import Callbacks, Sockets, Watcher
from enginecore_client.errors import RequestRejectedError
from enginecore_wire.engine_options import max_logprobs

if TYPE_CHECKING:
    from enginecore_client._launch.launcher import Launcher

Addresses = Mapping[str, Any] | str | os.PathLike[str] | ClientAddresses | AddressSource
MakeSockets = Callable[[Watcher, Callbacks], Sockets]


class Engines(NamedTuple):
    """What a client's core and driver need to reach engines.

    `transport` None is the one for engine servers.
    """

    source: AddressSource
    transport: Transport | None
    make_sockets: MakeSockets
    launcher: "Launcher | None" = None


class EngineChoice(NamedTuple):
    """What the caller says about engines beside their addresses; MPClient says what it means."""

    client_count: int
    client_index: int
    data_parallel_size: int | None
    ranks: Sequence[int] | None
    lockstep: bool
    native: NativeOptions
    command: EngineCommand | Sequence[str] | None
    launch: LaunchOptions
    client_key: str | os.PathLike[str] | None


def find_engines(addresses: Addresses | None, choice: EngineChoice, ids: Ids) -> Engines:
    """Return how the engines of `client_addresses` are reached; None stands for launching them.

    Raises:
        AddressError: the addresses are wrong.
        AuthenticationError: the client's key cannot be read.
        RequestRejectedError: what was chosen does not go together.
    """
    check_options(choice.native)
    check_launch(choice.launch)
    if addresses is None:
        _refuse_key(choice, "where the client starts its engines")
        return _launched(choice, ids)
    if choice.command is not None:
        raise RequestRejectedError(
            "engine_command: given together with client_addresses; leave one of them out",
            field="engine_command",
        )
    if choice.launch != LaunchOptions():
        raise RequestRejectedError(
            "launch: given together with client_addresses, where no engine is launched; leave one "
            "of them out",
            field="launch",
        )
    bound = _bound_addresses(addresses)
    if bound is not None:
        _refuse_key(choice, "in mode 'bind'")
        return _bound(bound, choice, ids)
    source = source_of(addresses)
    if choice.ranks is not None:
        source = RankSource(source, choice.ranks)
    own_key = OwnKey(choice.client_key)

    def make_sockets(watcher: Watcher, callbacks: Callbacks) -> Sockets:
        return SocketSet(watcher, callbacks, own_key)

    return Engines(source, None, make_sockets)


def _refuse_key(choice: EngineChoice, where: str) -> None:
    if choice.client_key is not None:
        raise RequestRejectedError(
            f"client_key: given {where}, allowed: only for engine servers, as engines that dial in "
            "know no CURVE",
            field="client_key",
        )


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


def vocabulary_of(model: str) -> int | None:
    """Return the size of a model's vocabulary if its directory is here and says so."""
    try:
        with open(os.path.join(model, "config.json"), "rb") as file:
            config = msgspec.json.decode(file.read(), type=_ModelConfig)
    except (OSError, ValueError):
        return None
    return config.vocab_size or (config.text_config.vocab_size if config.text_config else None)


class _ModelConfig(msgspec.Struct):
    """The part of a config.json that is read here."""

    vocab_size: int | None = None
    text_config: "_ModelConfig | None" = None


class LaunchedSource:
    """The client's own addresses, and the coordinator's once it is started.

    Args:
        launcher: starts the engines with the client's addresses.
        bound: has these.
    """

    def __init__(self, launcher: "Launcher", bound: BoundSource) -> None:
        self._launcher = launcher
        self._bound = bound
        self._addresses: ClientAddresses | None = None

    def start(self, wake: Callable[[], None]) -> None:
        """Start the engines."""
        self._addresses = addresses = self._bound.poll(0.0)
        assert addresses is not None
        self._fresh = True
        self._launcher.on_change = wake
        self._launcher.start(addresses.input_address, addresses.output_address)

    def poll(self, now: float) -> ClientAddresses | None:  # noqa: ARG002 - no matter when
        """Return the addresses at first, and when the coordinator is known."""
        told, known = self._addresses, self._launcher.addresses
        assert told is not None
        stats = known.frontend_stats_publish_address if known is not None else None
        if not self._fresh and stats == told.stats_update_address:
            return None
        self._fresh = False
        self._addresses = msgspec.structs.replace(told, stats_update_address=stats)
        return self._addresses

    def close(self) -> None:
        """Stop."""
        self._launcher.on_change = _nothing

    def describe(self) -> str:
        """Return where the addresses come from."""
        return "those that this client started"


def _bound_addresses(addresses: Addresses) -> ClientAddresses | None:
    """Return the addresses to bind, None for another mode; a file is read once for that."""
    if isinstance(addresses, Mapping):
        addresses = ClientAddresses.from_dict(addresses)
    elif isinstance(addresses, str | os.PathLike):
        addresses = ClientAddresses.from_file(addresses)
    elif isinstance(addresses, ClientAddresses):
        addresses = addresses.checked()
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


def _launched(choice: EngineChoice, ids: Ids) -> Engines:
    from enginecore_client._launch.launcher import Launcher  # noqa: PLC0415 - rarely needed

    if choice.client_count != 1:
        raise RequestRejectedError(
            f"client_count: got {choice.client_count}, allowed: 1 for a client that starts its own "
            "engines; use launch_core_engines, and a client in mode 'bind' for each address",
            field="client_count",
        )
    command = command_of(choice.command)
    expected = managed_ranks(choice)
    size = choice.data_parallel_size or max(expected) + 1
    started = started_ranks(choice.launch.local_ranks, expected)
    launcher = Launcher(
        LaunchPlan(command, started, expected, size, choice.lockstep, choice.launch)
    )
    wanted = ClientAddresses((launcher.path("input"),), (launcher.path("output"),), mode="bind")
    native = choice.native
    if native.vocab_size is None:
        known = command.vocab_size or vocabulary_of(command.model)
        native = msgspec.structs.replace(native, vocab_size=known)
    if native.max_logprobs is None:
        native = msgspec.structs.replace(native, max_logprobs=max_logprobs(command.command))
    engines = _bound(wanted, choice._replace(native=native), ids)
    assert isinstance(engines.source, BoundSource)
    return engines._replace(source=LaunchedSource(launcher, engines.source), launcher=launcher)


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


def _nothing() -> None:
    """Nobody wants to know."""
