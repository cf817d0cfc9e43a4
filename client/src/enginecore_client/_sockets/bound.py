"""The sockets into which engines dial: one ROUTER for requests, one PULL for outputs.

An engine's name is its rank. Who a message of the PULL is from stands in the message; whose
connection broke is told by its descriptor, which a message shows (`__fd`) and the monitor
names when the connection ends. The same descriptor says whose last word ENGINE_CORE_DEAD is.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import zmq

from enginecore_client._addresses.addresses import ClientAddresses
from enginecore_client._core.peers import Peers, Strangers, rank_in
from enginecore_client._core.states import Channel
from enginecore_client._sockets.resources import (
    BURST,
    FAREWELL_MS,
    IO_THREADS,
    Callbacks,
    HostUnreachableError,
    LoadFeed,
    Socket,
    Watcher,
    monitor_event,
    received,
)
from enginecore_client.errors import AddressError
from enginecore_client.zmq_sockets import attach, check_free, last_endpoint, unattached
from enginecore_wire.frames import Frame
from enginecore_wire.handshake import engine_identity, engine_rank
from enginecore_wire.outputs import ENGINE_CORE_DEAD

_LOG = logging.getLogger("enginecore_client")

_SOURCE: Final = 0
"""The two sockets are read together: what is told of one concerns the other."""

LOOK_SECONDS: Final = 0.05
"""How often the ROUTER is looked at although nothing woke anybody for it, as sending may take the
wake-up; engines send there once in their life, and a look costs as much as an output."""

_WATCHED: Final = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED
_FIRST: Final = int(zmq.NOBLOCK | zmq.SNDMORE)
_LAST: Final = int(zmq.NOBLOCK)
_HEARTBEAT: Final = {
    zmq.HEARTBEAT_IVL: 1000,
    zmq.HEARTBEAT_TIMEOUT: 2500,
    zmq.HANDSHAKE_IVL: 2000,
    zmq.BACKLOG: 1024,
}
"""libzmq answers heartbeats by itself; vLLM's end needs to know nothing of them."""


class BoundSocketSet:
    """One ROUTER and one PULL for all engines.

    Args:
        watcher: the shell's way to wait for sockets.
        callbacks: whom to tell what.
        addresses: what to bind, in mode `bind`.
        clock: monotonic seconds.

    Raises:
        AddressError: an address cannot be bound; nothing is left open.
    """

    def __init__(
        self,
        watcher: Watcher,
        callbacks: Callbacks,
        addresses: ClientAddresses,
        clock: Callable[[], float],
    ) -> None:
        self._watcher = watcher
        self._clock = clock
        self._context: zmq.Context[Any] | None = zmq.Context(io_threads=IO_THREADS)
        self._feed = LoadFeed(watcher, callbacks.on_loads)
        self._on_messages = partial(callbacks.on_messages, _SOURCE)
        self._peers = {channel: Peers() for channel in Channel}
        self._links: dict[int, int] = {}
        self._ranks: dict[int, int] = {}
        self._broken: deque[int] = deque()
        self._look_at = 0.0
        self._linger = 0
        self._sockets: dict[Channel, Socket] = {}
        self._monitors: dict[Channel, Socket] = {}
        try:
            self._bind(Channel.INPUT, zmq.ROUTER, addresses.input_address[0])
            self._bind(Channel.OUTPUT, zmq.PULL, addresses.output_address[0])
        except AddressError:
            self.close_all()
            raise
        self.addresses = (
            last_endpoint(self._sockets[Channel.INPUT]),
            last_endpoint(self._sockets[Channel.OUTPUT]),
        )
        self._strangers = Strangers(self.addresses[0])
        # pyzmq's own `send` in Python costs as much again as sending; this is the C one under it.
        self._send: Callable[..., object] = super(zmq.Socket, self._sockets[Channel.INPUT]).send
        watcher.watch(self._sockets[Channel.INPUT], self._announced)
        watcher.watch(self._sockets[Channel.OUTPUT], self._on_messages)
        for channel in Channel:
            watcher.watch(self._monitors[channel], partial(callbacks.on_monitor, _SOURCE, channel))

    def open(
        self,
        link: int,
        routing_id: bytes,
        addresses: tuple[str, str],  # noqa: ARG002
        server_key: str = "",  # noqa: ARG002 - engines here know no CURVE
    ) -> None:
        """Take what the engine of rank `routing_id` sends for this link from now on."""
        rank = engine_rank(routing_id)
        assert rank is not None
        self._links[rank] = link
        self._ranks[link] = rank

    def close(self, link: int, *, farewell: bool) -> None:
        """Forget a link; the sockets stay bound for the next process of its rank."""
        if farewell:
            self._linger = FAREWELL_MS
        rank = self._ranks.pop(link, None)
        if rank is not None and self._links.get(rank) == link:
            del self._links[rank]

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
        """Return the one source there is."""
        return [] if self._context is None else [_SOURCE]

    def send(self, link: int, channel: Channel, frames: list[Frame]) -> bool:  # noqa: ARG002
        """Hand frames to ZMQ for the engine of a link.

        Raises:
            HostUnreachableError: no engine of that rank is connected.
        """
        rank = self._ranks.get(link)
        if rank is None or self._context is None:
            return False
        send = self._send
        try:
            send(engine_identity(rank), _FIRST)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            raise HostUnreachableError from error
        last = len(frames) - 1
        for index, frame in enumerate(frames):
            send(frame, _FIRST if index < last else _LAST, isinstance(frame, bytes))
        return True

    def messages(self, source: int) -> Iterator[tuple[int, Channel, list[Frame]]]:  # noqa: ARG002
        """Yield READY payloads (INPUT) and outputs (OUTPUT), at most BURST of each."""
        if self._context is None:
            return
        now = self._clock()
        if now >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            yield from self._announcements()
        yield from self._outputs()

    def changes(self, source: int, channel: Channel) -> Iterator[tuple[int, bool]]:  # noqa: ARG002
        """Yield a link and False for each connection that broke."""
        if self._context is None:
            return
        self._look(channel)
        while self._broken:
            yield self._broken.popleft(), False
        peers = self._peers[Channel.INPUT]
        waiting = len(self._links.keys() - peers.ranks())
        self._strangers.count(len(peers.mute(self._clock())) - waiting, sorted(peers.ranks()))

    def close_all(self, *, farewell: bool = True) -> None:  # noqa: ARG002 - nobody would listen
        """Close every socket and the context; later calls do nothing."""
        context, self._context = self._context, None
        if context is None:
            return
        self._feed.subscribe(None, None)
        for channel, socket in self._sockets.items():
            for each in (socket, self._monitors[channel]):
                self._watcher.unwatch(each)
            socket.disable_monitor()
            socket.close(self._linger if channel is Channel.INPUT else 0)
            self._monitors[channel].close(0)
        context.term()

    def _bind(self, channel: Channel, kind: int, address: str) -> None:
        assert self._context is not None
        check_free(address)
        socket = unattached(self._context, address, kind, linger=0)
        self._sockets[channel] = socket
        self._monitors[channel] = socket.get_monitor_socket(_WATCHED)
        for option, value in _HEARTBEAT.items():
            socket.setsockopt(option, value)
        if kind == zmq.ROUTER:
            socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        attach(socket, address, bind=True)

    def _announced(self) -> None:
        """Have the ROUTER looked at, in which something may have arrived."""
        self._look_at = 0.0
        self._on_messages()

    def _announcements(self) -> Iterator[tuple[int, Channel, list[Frame]]]:
        for _ in range(BURST):
            frames = _receive(self._sockets[Channel.INPUT])
            if not frames:
                return
            identity = frames[0].bytes
            # A descriptor may be used again: what the monitor says of it came before.
            self._look_at_both()
            rank = engine_rank(identity)
            link = None if rank is None else self._links.get(rank)
            if rank is None or link is None or len(frames) < 2:
                self._strangers.refuse(identity, sorted(self._links))
                continue
            self._peers[Channel.INPUT].succeed(_descriptor(frames[0]), rank)
            self._peers[Channel.OUTPUT].forget(rank)
            yield link, Channel.INPUT, [frames[1].buffer]

    def _outputs(self) -> Iterator[tuple[int, Channel, list[Frame]]]:
        socket, peers = self._sockets[Channel.OUTPUT], self._peers[Channel.OUTPUT]
        for count in range(BURST):
            if count == 1 and not int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
                return  # most often one came alone, and to be told so is cheaper than to fail
            frames = _receive(socket)
            if not frames:
                return
            body: Frame = frames[0].buffer
            rank = rank_in(body)
            if rank is None:
                rank = self._sender(frames[0], last_word=body == ENGINE_CORE_DEAD)
            elif peers.unknown:
                self._look(Channel.OUTPUT)
                peers.know(_descriptor(frames[0]), rank)
            link = self._links.get(-1 if rank is None else rank)
            if link is not None:
                yield link, Channel.OUTPUT, [frame.buffer for frame in frames]

    def _sender(self, frame: zmq.Frame, *, last_word: bool) -> int | None:
        """Return who sent a frame that does not say so; None if that cannot be known."""
        self._look(Channel.OUTPUT)
        rank = self._peers[Channel.OUTPUT].rank(_descriptor(frame))
        if not last_word:
            return rank
        if rank is None:
            silent = self._links.keys() - self._peers[Channel.OUTPUT].ranks()
            rank = silent.pop() if len(silent) == 1 else None
        if rank is None:
            _LOG.warning("an engine (or a stranger) says that it died; connections will tell which")
        return rank

    def _look_at_both(self) -> None:
        for channel in Channel:
            self._look(channel)
        if self._broken:
            self._watcher.again(self._on_messages)

    def _look(self, channel: Channel) -> None:
        """Take in what the monitor has to say."""
        while True:
            events = list(received(self._monitors[channel]))
            for frames in events:
                self._take_event(channel, *monitor_event(frames))
            if len(events) < BURST:
                return

    def _take_event(self, channel: Channel, event: int, descriptor: int) -> None:
        peers = self._peers[channel]
        if event == zmq.EVENT_ACCEPTED:
            peers.accepted(descriptor, self._clock())
            return
        rank = peers.disconnected(descriptor)
        link = None if rank is None else self._links.get(rank)
        if link is not None:
            self._broken.append(link)


def _receive(socket: Socket) -> list[zmq.Frame]:
    """Return the frames of the next message; none if there is no message now."""
    try:
        frame = socket.recv(_LAST, copy=False)
    except zmq.Again:
        return []
    frames = [frame]
    while frame.more:
        frame = socket.recv(_LAST, copy=False)
        frames.append(frame)
    return frames


def _descriptor(frame: zmq.Frame) -> int:
    """Return the descriptor of the connection through which a frame came."""
    return int(frame.get("__fd"))
