"""The sockets towards engine servers: a pair for each engine, closed exactly once."""

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import zmq

from enginecore_client._core.states import Channel
from enginecore_client._sockets.own_key import OwnKey
from enginecore_client._sockets.resources import (
    FAREWELL_MS,
    IO_THREADS,
    OPTIONS,
    Callbacks,
    LoadFeed,
    Socket,
    Watcher,
    monitor_event,
    received,
)
from enginecore_client.errors import AuthenticationError
from enginecore_wire.control import Bye
from enginecore_wire.frames import Frame, encode_control

_LISTENS: Final[dict[int, bool]] = {zmq.EVENT_CONNECTED: True, zmq.EVENT_CLOSED: False}
"""What tells whether anybody listens, be it an engine server or not."""

_WATCHED: Final = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECTED | zmq.EVENT_CLOSED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)  # fmt: skip

_REFUSED: Final = (
    "it refuses the public key {}: have that key listed in the cluster, or give a file with a "
    "listed key as client_key or in ENGINECORE_CLIENT_KEY_FILE"
)
_ASKS_FOR_CURVE: Final = (
    "it speaks CURVE only: its address needs the server_key that the cluster's status has, and the "
    "client a key of its own (client_key)"
)
_SPEAKS_PLAINLY: Final = (
    "its address has a server_key, but what listens there does not speak CURVE: leave server_key "
    "out if its cluster has transport.security None"
)


class Pair:
    """The two DEALERs to one engine and their monitors.

    Raises:
        AuthenticationError: the client has no key, and the engine's server has one.
        zmq.ZMQError: an address is not one that ZMQ connects to.
    """

    def __init__(
        self,
        context: zmq.Context[Any],
        routing_id: bytes,
        addresses: tuple[str, str],
        own_key: OwnKey,
        server_key: str,
    ) -> None:
        self._sockets: dict[Channel, Socket] = {}
        self.monitors: dict[Channel, Socket] = {}
        self._own_key = own_key
        self._server_key = server_key
        self._public_key = ""
        try:
            for channel, address in zip(Channel, addresses, strict=True):
                self._open(context, channel, routing_id, address)
        except (AuthenticationError, zmq.ZMQError):
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

    def failure(self, event: int, value: int) -> tuple[AuthenticationError | None] | None:
        """Return why a handshake failed, if that has to do with keys; (None,) if it is not known
        that it has not."""
        if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            return (AuthenticationError(_REFUSED.format(self._public_key)),)
        if event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL and self._server_key:
            return (None,)
        if (
            event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
            and value == zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH
        ):
            return (AuthenticationError(_SPEAKS_PLAINLY if self._server_key else _ASKS_FOR_CURVE),)
        return None

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
        for option, value in OPTIONS.items():
            socket.setsockopt(option, value)
        socket.setsockopt(zmq.ROUTING_ID, routing_id)
        socket.setsockopt(zmq.IMMEDIATE, 1 if channel is Channel.INPUT else 0)
        self._public_key = self._own_key.apply(socket, self._server_key)
        self.monitors[channel] = socket.get_monitor_socket(_WATCHED)
        socket.connect(address)


class SocketSet:
    """A pair of sockets to each engine server; a link is its own source.

    Args:
        watcher: the shell's way to wait for sockets.
        callbacks: whom to tell what.
        own_key: the client's key, for servers with CURVE.
    """

    def __init__(
        self, watcher: Watcher, callbacks: Callbacks, own_key: OwnKey | None = None
    ) -> None:
        self._watcher = watcher
        self._own_key = own_key or OwnKey(None)
        self._on_refused = callbacks.on_refused
        self._on_messages = callbacks.on_messages
        self._on_monitor = callbacks.on_monitor
        self._on_listener = callbacks.on_listener
        self._context: zmq.Context[Any] | None = zmq.Context(io_threads=IO_THREADS)
        self._pairs: dict[int, Pair] = {}
        self._feed = LoadFeed(watcher, callbacks.on_loads, self._own_key)

    def open(
        self, link: int, routing_id: bytes, addresses: tuple[str, str], server_key: str = ""
    ) -> None:
        """Open the pair of a link to IP addresses.

        Raises:
            AuthenticationError: the client has no key, and the server has one.
            zmq.ZMQError: an address is not one that ZMQ connects to.
        """
        if self._context is None:
            return
        pair = Pair(self._context, routing_id, addresses, self._own_key, server_key)
        self._pairs[link] = pair
        self._watcher.watch(pair.output, partial(self._on_messages, link))
        for channel, monitor in pair.monitors.items():
            self._watcher.watch(monitor, partial(self._on_monitor, link, channel))

    def close(self, link: int, *, farewell: bool) -> None:
        """Close the pair of a link, if it is open."""
        pair = self._pairs.pop(link, None)
        if pair is not None:
            for socket in (pair.output, *pair.monitors.values()):
                self._watcher.unwatch(socket)
            pair.close(farewell=farewell)

    def subscribe(self, address: str | None, server_key: str = "") -> None:
        """Take load reports from a coordinator from now on, or from nobody."""
        self._feed.subscribe(self._context, address, server_key)

    def announce(self, message: bytes) -> None:
        """Send a message to the coordinator, if there is one and it is connected."""
        self._feed.announce(message)

    def loads(self) -> Iterator[list[Frame]]:
        """Yield what the coordinator published, at most BURST messages."""
        return self._feed.messages()

    def sources(self) -> list[int]:
        """Return the links whose pairs are open."""
        return list(self._pairs)

    def send(self, link: int, channel: Channel, frames: list[Frame]) -> bool:
        """Hand frames to ZMQ; False when it does not take them now."""
        pair = self._pairs.get(link)
        if pair is None or not pair.send(channel, frames):
            return False
        if channel is Channel.OUTPUT:
            self._watcher.again(partial(self._on_messages, link))
        return True

    def messages(self, source: int) -> Iterator[tuple[int, Channel, list[Frame]]]:
        """Yield what an engine sent, at most BURST messages."""
        pair = self._pairs.get(source)
        if pair is not None:
            for frames in received(pair.output):
                yield source, Channel.OUTPUT, frames

    def changes(self, source: int, channel: Channel) -> Iterator[tuple[int, bool]]:
        """Yield True for each HANDSHAKE_SUCCEEDED and False for each DISCONNECTED."""
        pair = self._pairs.get(source)
        for frames in () if pair is None else received(pair.monitors[channel]):
            event, value = monitor_event(frames)
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                yield source, True
            elif event == zmq.EVENT_DISCONNECTED:
                yield source, False
            elif event in _LISTENS:
                self._on_listener(source, _LISTENS[event])
            elif pair is not None and (failure := pair.failure(event, value)) is not None:
                self._on_refused(source, failure[0])

    def close_all(self, *, farewell: bool = True) -> None:
        """Close every socket and the context; later calls do nothing."""
        for link in self.sources():
            self.close(link, farewell=farewell)
        self.subscribe(None)
        context, self._context = self._context, None
        if context is not None:
            context.term()
