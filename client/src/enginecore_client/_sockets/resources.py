"""What the sockets of a client have in common: options, waiting, the coordinator, names.

Nothing here refers to a client. Sockets belong to one thread (or loop); only `Lookup` uses
another one, because a resolver may block for many seconds.
"""

import contextlib
import socket as sockets
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol

import zmq

from enginecore_client._addresses.addresses import host_name, with_host
from enginecore_client._core.states import Channel
from enginecore_client._sockets.own_key import OwnKey
from enginecore_client.errors import AuthenticationError
from enginecore_wire.frames import Frame

BURST: Final = 64
"""Messages taken from one socket before others get their turn."""

BURST_BYTES: Final = 1 << 20
"""The same in bytes of their bodies: some milliseconds of work, for which a reader wakes once."""

FAREWELL_MS: Final = 100
"""How long what is said last may take to leave."""

OPTIONS: Final = {
    zmq.SNDHWM: 1000,
    zmq.RCVHWM: 0,
    zmq.HEARTBEAT_IVL: 1000,
    zmq.HEARTBEAT_TIMEOUT: 2500,
    zmq.HEARTBEAT_TTL: 3500,
    zmq.HANDSHAKE_IVL: 2000,
    zmq.CONNECT_TIMEOUT: 1500,
    zmq.RECONNECT_IVL: 100,
    zmq.RECONNECT_IVL_MAX: 1000,
    zmq.IPV6: 1,
    zmq.LINGER: 0,
}
"""What every socket that connects is set to."""

IO_THREADS: Final = 2

Socket = zmq.Socket[bytes]


class Watcher(Protocol):
    """How a shell learns that a socket has something to read.

    `turns` says whether it is a loop, where `again` calls back when the turn is over.
    """

    turns: bool

    def watch(self, socket: Socket, callback: Callable[[], None]) -> None:
        """Call `callback` whenever `socket` may have something to read."""

    def unwatch(self, socket: Socket) -> None:
        """Stop that; the socket is about to be closed."""

    def again(self, callback: Callable[[], None]) -> None:
        """Call `callback` soon: there may be more to read than was read."""


class Callbacks(NamedTuple):
    """Whom sockets tell that there may be something to read.

    `on_messages` is called with a source, `on_monitor` with a source and a channel, `on_loads`
    when the coordinator may have published, `on_listener` with a link and whether anybody listens
    at its address, where that is known, `on_refused` with a link whose handshake failed over keys
    and why, if that is known.
    """

    on_messages: Callable[[int], None]
    on_monitor: Callable[[int, Channel], None]
    on_loads: Callable[[], None]
    on_listener: Callable[[int, bool], None]
    on_refused: Callable[[int, AuthenticationError | None], None]


class Sockets(Protocol):
    """All sockets of one client, however engines are reached.

    What is read together is a source; what belongs to one engine is a link.
    """

    def open(
        self, link: int, routing_id: bytes, addresses: tuple[str, str], server_key: str = ""
    ) -> None:
        """Make a link ready to send and receive; with CURVE if the other side has a key.

        Raises:
            AuthenticationError: the client has no key.
            zmq.ZMQError: an address is not one that ZMQ connects to.
        """

    def close(self, link: int, *, farewell: bool) -> None:
        """End a link, if it is open; `farewell` says BYE first where that is known."""

    def sources(self) -> list[int]:
        """Return what `messages` and `changes` can be asked for."""

    def messages(self, source: int) -> Iterator[tuple[int, Channel, list[Frame]]]:
        """Yield link, channel and frames of what came, at most BURST messages."""

    def changes(self, source: int, channel: Channel) -> Iterator[tuple[int, bool]]:
        """Yield a link and True for each connection that was made, False for each that broke."""

    def send(self, link: int, channel: Channel, frames: list[Frame]) -> bool:
        """Hand frames to ZMQ; False when it does not take them now.

        Raises:
            HostUnreachableError: the link's engine is not connected (where that is known).
        """

    def subscribe(self, address: str | None, server_key: str = "") -> None:
        """Take load reports from a coordinator from now on, or from nobody."""

    def announce(self, message: bytes) -> None:
        """Send a message to the coordinator, if there is one and it is connected."""

    def loads(self) -> Iterator[list[Frame]]:
        """Yield what the coordinator published, at most BURST messages."""

    def close_all(self, *, farewell: bool = True) -> None:
        """Close every socket and the context; later calls do nothing."""


class HostUnreachableError(Exception):
    """Nobody is connected under the name that a message was for."""


class LoadFeed:
    """The subscription to a coordinator.

    Args:
        watcher: the shell's way to wait for sockets.
        on_loads: called when the coordinator may have published.
        own_key: the client's key, for coordinators with CURVE.
    """

    def __init__(
        self, watcher: Watcher, on_loads: Callable[[], None], own_key: OwnKey | None = None
    ) -> None:
        self._watcher = watcher
        self._on_loads = on_loads
        self._own_key = own_key or OwnKey(None)
        self._socket: Socket | None = None

    def subscribe(
        self, context: zmq.Context[Any] | None, address: str | None, server_key: str = ""
    ) -> None:
        """Take load reports from `address` from now on; None, an address that ZMQ does not connect
        to, or no key where one is needed: from nobody."""
        if self._socket is not None:
            self._watcher.unwatch(self._socket)
            self._socket.close(0)
            self._socket = None
        if address is None or context is None:
            return
        socket: Socket = context.socket(zmq.XSUB)
        for option, value in OPTIONS.items():
            socket.setsockopt(option, value)
        try:
            self._own_key.apply(socket, server_key)
            socket.connect(address)
        except (AuthenticationError, zmq.ZMQError):
            socket.close(0)
            return
        socket.send(b"\x01")
        self._socket = socket
        self._watcher.watch(socket, self._on_loads)

    def announce(self, message: bytes) -> None:
        """Send a message to the coordinator, if there is one and it is connected."""
        if self._socket is not None:
            with contextlib.suppress(zmq.Again):
                self._socket.send(message, zmq.NOBLOCK)

    def messages(self) -> Iterator[list[Frame]]:
        """Yield what the coordinator published, at most BURST messages."""
        return iter(()) if self._socket is None else received(self._socket)


def monitor_event(frames: Sequence[Frame]) -> tuple[int, int]:
    """Return event and value of a monitor's message, as zmq.utils.monitor does, which brings
    zmq.asyncio along."""
    event, value = _MONITOR_EVENT.unpack(frames[0])
    return event, value


_MONITOR_EVENT: Final = struct.Struct("=Hi")


def received(socket: Socket) -> Iterator[list[Frame]]:
    """Yield what came on a socket, at most BURST messages."""
    for _ in range(BURST):
        try:
            frames: list[Frame] = [socket.recv(zmq.NOBLOCK)]
        except zmq.Again:
            return
        while socket.getsockopt(zmq.RCVMORE):
            frames.append(socket.recv(copy=False).buffer)
        yield frames


class Lookup:
    """Finds the IPs of addresses without holding up anything else."""

    def __init__(self, done: Callable[[tuple[str, ...] | OSError], None]) -> None:
        self._done = done

    def start(self, addresses: tuple[str, ...], attempt: int) -> None:
        """Resolve in a thread of its own, then call `done` there."""
        threading.Thread(
            target=self._run, args=(addresses, attempt), name="enginecore-lookup", daemon=True
        ).start()

    def _run(self, addresses: tuple[str, ...], attempt: int) -> None:
        found: tuple[str, ...] | OSError
        try:
            found = tuple(resolve(address, attempt) for address in addresses)
        except OSError as error:
            found = error
        except UnicodeError as error:  # a label longer than names may have
            found = OSError(str(error))
        self._done(found)


def resolve(address: str, attempt: int = 0) -> str:
    """Return `address` with its host name replaced by an IP; blocks.

    A name with several IPs gives another one at each attempt, IPv4 first.

    Raises:
        OSError: the name is not known.
    """
    host = host_name(address)
    if host is None:
        return address
    found = {str(info[4][0]) for info in sockets.getaddrinfo(host, None)}
    ips = sorted(found, key=lambda ip: (":" in ip, ip))
    return with_host(address, ips[attempt % len(ips)])
