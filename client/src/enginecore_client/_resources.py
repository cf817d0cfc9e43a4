"""The sockets of a client: opened with the options the protocol wants, closed exactly once.

Nothing here refers to a client. Sockets belong to one thread (or loop); only `Lookup` uses
another one, because a resolver may block for many seconds.
"""

import contextlib
import socket as sockets
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, Protocol

import zmq
from zmq.utils.monitor import parse_monitor_message

from enginecore_client._addresses import host_name, with_host
from enginecore_client._states import Channel
from enginecore_wire.control import Bye
from enginecore_wire.frames import Frame, encode_control

BURST: Final = 64
"""Messages taken from one socket before others get their turn."""

FAREWELL_MS: Final = 100
"""How long BYE may take to leave."""

_IO_THREADS: Final = 2
_WATCHED: Final = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
_OPTIONS: Final = {
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

Socket = zmq.Socket[bytes]


class Watcher(Protocol):
    """How a shell learns that a socket has something to read."""

    def watch(self, socket: Socket, callback: Callable[[], None]) -> None:
        """Call `callback` whenever `socket` may have something to read."""

    def unwatch(self, socket: Socket) -> None:
        """Stop that; the socket is about to be closed."""

    def again(self, callback: Callable[[], None]) -> None:
        """Call `callback` soon: there may be more to read than was read."""


class Pair:
    """The two DEALERs to one engine and their monitors."""

    def __init__(self, context: zmq.Context[Any], routing_id: bytes, addresses: tuple[str, str]):
        self._sockets: dict[Channel, Socket] = {}
        self.monitors: dict[Channel, Socket] = {}
        try:
            for channel, address in zip(Channel, addresses, strict=True):
                self._open(context, channel, routing_id, address)
        except zmq.ZMQError:
            self.close(farewell=False)
            raise

    @property
    def output(self) -> Socket:
        """Return the socket on which everything arrives."""
        return self._sockets[Channel.OUTPUT]

    def send(self, channel: Channel, frames: list[Frame]) -> bool:
        """Hand frames to ZMQ; False when it does not take them now."""
        try:
            self._sockets[channel].send_multipart(frames, zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return False
        return True

    def close(self, *, farewell: bool) -> None:
        """Close everything; `farewell` says BYE first."""
        linger = 0
        if farewell and self.send(Channel.INPUT, list(encode_control(Bye()))):
            linger = FAREWELL_MS
        for channel, socket in self._sockets.items():
            socket.disable_monitor()
            socket.close(linger if channel is Channel.INPUT else 0)
        for monitor in self.monitors.values():
            monitor.close(0)

    def _open(
        self, context: zmq.Context[Any], channel: Channel, routing_id: bytes, address: str
    ) -> None:
        socket = context.socket(zmq.DEALER)
        self._sockets[channel] = socket
        for option, value in _OPTIONS.items():
            socket.setsockopt(option, value)
        socket.setsockopt(zmq.ROUTING_ID, routing_id)
        socket.setsockopt(zmq.IMMEDIATE, 1 if channel is Channel.INPUT else 0)
        self.monitors[channel] = socket.get_monitor_socket(_WATCHED)
        socket.connect(address)


class SocketSet:
    """All sockets of one client.

    Args:
        watcher: the shell's way to wait for sockets.
        on_output: called with a link whose output socket may have messages.
        on_monitor: called with a link and the channel whose monitor may have events.
        on_loads: called when the coordinator may have published.
    """

    def __init__(
        self,
        watcher: Watcher,
        on_output: Callable[[int], None],
        on_monitor: Callable[[int, Channel], None],
        on_loads: Callable[[], None],
    ) -> None:
        self._watcher = watcher
        self._on_output = on_output
        self._on_monitor = on_monitor
        self._on_loads = on_loads
        self._context: zmq.Context[Any] | None = zmq.Context(io_threads=_IO_THREADS)
        self._pairs: dict[int, Pair] = {}
        self._feed: Socket | None = None

    def open(self, link: int, routing_id: bytes, addresses: tuple[str, str]) -> None:
        """Open the pair of a link to IP addresses.

        Raises:
            zmq.ZMQError: an address is not one that ZMQ connects to.
        """
        if self._context is None:
            return
        pair = Pair(self._context, routing_id, addresses)
        self._pairs[link] = pair
        self._watcher.watch(pair.output, partial(self._on_output, link))
        for channel, monitor in pair.monitors.items():
            self._watcher.watch(monitor, partial(self._on_monitor, link, channel))

    def close(self, link: int, *, farewell: bool) -> None:
        """Close the pair of a link, if it is open."""
        pair = self._pairs.pop(link, None)
        if pair is not None:
            for socket in (pair.output, *pair.monitors.values()):
                self._watcher.unwatch(socket)
            pair.close(farewell=farewell)

    def subscribe(self, address: str | None) -> None:
        """Take load reports from `address` from now on; None, or an address that ZMQ does not
        connect to: from nobody."""
        if self._feed is not None:
            self._watcher.unwatch(self._feed)
            self._feed.close(0)
            self._feed = None
        if address is not None and self._context is not None:
            feed = self._context.socket(zmq.XSUB)
            for option, value in _OPTIONS.items():
                feed.setsockopt(option, value)
            try:
                feed.connect(address)
            except zmq.ZMQError:
                feed.close(0)
                return
            feed.send(b"\x01")
            self._feed = feed
            self._watcher.watch(feed, self._on_loads)

    def announce(self, message: bytes) -> None:
        """Send a message to the coordinator, if there is one and it is connected."""
        if self._feed is not None:
            with contextlib.suppress(zmq.Again):
                self._feed.send(message, zmq.NOBLOCK)

    def links(self) -> list[int]:
        """Return the links whose pairs are open."""
        return list(self._pairs)

    def send(self, link: int, channel: Channel, frames: list[Frame]) -> bool:
        """Hand frames to ZMQ; False when it does not take them now."""
        pair = self._pairs.get(link)
        if pair is None or not pair.send(channel, frames):
            return False
        if channel is Channel.OUTPUT:
            self._watcher.again(partial(self._on_output, link))
        return True

    def messages(self, link: int) -> Iterator[list[Frame]]:
        """Yield what an engine sent, at most BURST messages."""
        pair = self._pairs.get(link)
        return iter(()) if pair is None else _received(pair.output)

    def loads(self) -> Iterator[list[Frame]]:
        """Yield what the coordinator published, at most BURST messages."""
        return iter(()) if self._feed is None else _received(self._feed)

    def transitions(self, link: int, channel: Channel) -> Iterator[bool]:
        """Yield True for each HANDSHAKE_SUCCEEDED and False for each DISCONNECTED."""
        pair = self._pairs.get(link)
        for frames in () if pair is None else _received(pair.monitors[channel]):
            event = parse_monitor_message([bytes(frame) for frame in frames])["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                yield True
            elif event == zmq.EVENT_DISCONNECTED:
                yield False

    def close_all(self, *, farewell: bool = True) -> None:
        """Close every socket and the context; later calls do nothing."""
        for link in self.links():
            self.close(link, farewell=farewell)
        self.subscribe(None)
        context, self._context = self._context, None
        if context is not None:
            context.term()


def _received(socket: Socket) -> Iterator[list[Frame]]:
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
