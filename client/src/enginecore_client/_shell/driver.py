"""Moves bytes and time between sockets and ClientCore; what both shells have in common.

A driver belongs to one thread or loop, holds no reference to a client, and never blocks.
"""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

import zmq

from enginecore_client._addresses.addresses import ClientAddresses
from enginecore_client._addresses.sources import AddressSource
from enginecore_client._core.admission import deadline_after
from enginecore_client._core.books import RequestRecord
from enginecore_client._core.connection import Connection
from enginecore_client._core.core import ClientCore
from enginecore_client._core.events import Announce, Close, Open, Subscribe
from enginecore_client._core.states import Channel
from enginecore_client._metrics import NoMetrics
from enginecore_client._shell.collection import NoCollection
from enginecore_client._shell.following import Followed
from enginecore_client._shell.pending import BODY_FRAMES, PendingMessages, tracked
from enginecore_client._shell.telling import Inbox, Sink, Teller
from enginecore_client._sockets.dialer import Dialer
from enginecore_client._sockets.pairs import SocketSet
from enginecore_client._sockets.resources import (
    BURST,
    BURST_BYTES,
    Callbacks,
    HostUnreachableError,
    Sockets,
    Watcher,
)
from enginecore_client.errors import AuthenticationError, ClientClosedError
from enginecore_wire.requests import EngineCoreRequest

if TYPE_CHECKING:
    from enginecore_client._launch.launcher import Launcher

SWEEP_SECONDS: Final = 0.1
"""How often time passes for the core, and every socket is looked at once."""

TOGETHER: Final = 32
"""Requests of one turn of a loop that wait for one another."""

LAST_BURSTS: Final = 256
"""What came before a connection broke is read first; other engines may go on sending."""

MakeSockets = Callable[[Watcher, Callbacks], Sockets]


class Driver:
    """One client's core, sockets and address source.

    Args:
        core: what decides.
        source: where addresses come from.
        metrics: told of every event before anybody else.
        inbox: what get_output reads.
        watcher: the shell's way to wait for sockets.
        post: runs a callable in the driver's thread or loop; callable from any thread.
        clock: monotonic seconds.
        make_sockets: makes the sockets that go with the core's transport.
        launcher: what started the engines, if this client did.
    """

    def __init__(
        self,
        core: ClientCore,
        source: AddressSource,
        metrics: NoMetrics,
        inbox: Inbox,
        watcher: Watcher,
        post: Callable[[Callable[[], None]], None],
        clock: Callable[[], float] = time.monotonic,
        make_sockets: MakeSockets = SocketSet,
        launcher: "Launcher | None" = None,
    ) -> None:
        self.core = core
        self.source = source
        self._followed = Followed(source)
        self.clock = clock
        self.addresses: ClientAddresses | None = None
        self.launcher = launcher
        self.on_change: Callable[[], None] = _nothing
        self.pending_messages = PendingMessages()
        self._process = os.getpid()
        self._held = 0
        self._metrics = metrics
        self._inbox = inbox
        self._teller = Teller(metrics, inbox, launcher)
        self._watcher = watcher
        self._post = post
        self._shut = False
        self._refusals: list[tuple[int, AuthenticationError | None]] = []
        callbacks = Callbacks(
            self.drain, self._monitor, self._loads, core.links.listened, self._refused
        )
        self._sockets = make_sockets(watcher, callbacks)
        self._dialer = Dialer(core, self._sockets, post, self._refused)
        if launcher is not None:
            launcher.listener = self

    @property
    def forked(self) -> bool:
        """Say whether this process is a fork of the client's: sockets and threads stayed there."""
        return os.getpid() != self._process

    def check_process(self) -> None:
        """Refuse to work in a fork, where nothing would ever come.

        Raises:
            ClientClosedError: this process was forked after the client was made.
        """
        if self.forked:
            raise ClientClosedError(
                f"the client belongs to process {self._process} and this is a fork of it; create "
                "another one here"
            )

    def start(self) -> None:
        """Begin to follow the addresses."""
        self.source.start(lambda: self._post(self.tick))
        self._follow(self.clock())  # before messages are read: engines may have dialled in already
        self.tick()

    def tick(self) -> None:
        """Let time pass; called every SWEEP_SECONDS and when the source has news."""
        for source in self._sockets.sources():
            self.drain(source)
            for channel in Channel:
                self._monitor(source, channel)
        self._loads()
        self.pending_messages.free_pending_messages()
        now = self.clock()
        self._follow(now)
        self._end_refused(now)
        self.core.tick(now)
        self.pump()

    def drain(self, source: int) -> None:
        """Read what came."""
        with NoCollection():
            count, size = self._take(source)
            if count:
                self.pump()
        if count >= BURST or size >= BURST_BYTES:
            self._watcher.again(partial(self.drain, source))

    def pump(self) -> None:
        """Carry out what the core wants, send what it has, tell of what happened."""
        self._held = 0
        self._act()
        while connections := self.core.take_sendable():
            for connection in connections:
                self._send(connection)
        events = self.core.take_events()
        if not events:
            return
        self._teller.tell(events)
        self.on_change()

    def _pump_in_turn(self) -> None:
        """Send the first of a turn's requests at once, and those that follow it together: to
        wake ZMQ's thread takes longer than to send."""
        if 0 < self._held < TOGETHER:
            self._held += 1
            return
        self.pump()
        if self._watcher.turns:
            self._held = 1
            self._watcher.again(self._end_turn)

    def _end_turn(self) -> None:
        if self._held > 1:
            self.pump()
        self._held = 0

    def staged(self, rank: int, stage: str) -> None:
        """Take note how far a launched engine has come; may be called from any thread."""
        self._post(lambda: self.core.links.staged(rank, stage, self.clock()))

    def exited(self, rank: int, ending: str) -> None:
        """Take note that the process of a rank ended; may be called from any thread."""

        def tell() -> None:
            self.core.links.exited(rank, ending, self.clock())
            self.pump()

        self._post(tell)

    def add(
        self, request: EngineCoreRequest, sink: Sink | None, timeout: float | None, *, retry: bool
    ) -> RequestRecord:
        """Send a request; see Requests.add. `timeout` is in seconds from now."""
        now = self.clock()
        deadline = None if timeout is None else deadline_after(timeout, now, "deadline")
        record = self.core.requests.add(request, sink, now, deadline=deadline, retry=retry)
        self._pump_in_turn()
        return record

    def abort(self, request_ids: Sequence[str]) -> list[str]:
        """End requests by name; return those that had not ended."""
        ended = self.core.requests.abort(request_ids)
        self.pump()
        return ended

    def abort_record(self, record: RequestRecord) -> None:
        """End one request."""
        self.core.requests.abort_record(record)
        self.pump()

    def drop_record(self, record: RequestRecord) -> None:
        """End one request soon; may be called anywhere, also by the garbage collector."""
        self._post(lambda: self.abort_record(record))

    def end(self, failure: BaseException | None = None) -> None:
        """End everything that is unfinished; sockets and processes stay. Idempotent.

        Args:
            failure: what went wrong, if the client did not end by itself.
        """
        if self.core.closed or self.forked:
            return
        reason = "the client was closed" if failure is None else f"the client failed: {failure!r}"
        error = ClientClosedError(reason)
        self.core.close(error, self.clock())
        self.pump()
        self._inbox.finish(error)
        self.on_change()

    def shut(self, failure: BaseException | None = None, *, wait: bool = True) -> None:
        """End everything, close all sockets, end the engines; later calls do nothing.

        Engines end while the sockets are open, as one that still has something to say would
        wait for somebody to listen.

        Args:
            failure: what went wrong, if the client did not end by itself.
            wait: whether to wait for the engines this client launched; where the caller must not
                wait, they end by themselves.
        """
        if self._shut or self.forked:
            return
        self._shut = True
        self.end(failure)
        self.source.close()
        if self.launcher is not None:
            self.launcher.close()
            if wait:
                self.launcher.join()
        self._sockets.close_all()
        self._metrics.close()

    def _follow(self, now: float) -> None:
        """Take over new addresses, if there are any, and open what they name."""
        addresses = self._followed.poll(now)
        if addresses is not None:
            self.addresses = addresses
            self.core.set_addresses(addresses, now)
            self._act()

    def _act(self) -> None:
        """Carry out what the core wants of the sockets."""
        for action in self.core.take_actions():
            match action:
                case Open():
                    self._dialer.open(action)
                case Close(link, farewell, last_frames):
                    if last_frames:
                        with suppress(HostUnreachableError):
                            self._sockets.send(link, Channel.INPUT, [*last_frames])
                    self._sockets.close(link, farewell=farewell)
                case Subscribe(address, attempt, server_key):
                    self._dialer.subscribe(address, attempt, server_key)
                case Announce(message):
                    self._sockets.announce(message)

    def _send(self, connection: Connection) -> None:
        """Send what an engine's connection has to say, as far as ZMQ takes it."""
        try:
            while (item := connection.next_frames()) is not None:
                channel, frames = item
                large: Sequence[zmq.Frame] = ()
                if len(frames) > BODY_FRAMES:
                    frames, large = tracked(frames)
                if not self._sockets.send(connection.link, channel, frames):
                    return
                if large:
                    self.pending_messages.add_pending_message(large)
                connection.sent()
        except HostUnreachableError:
            self.core.links.disconnected(connection.link, Channel.INPUT, self.clock())
            self._act()

    def _monitor(self, source: int, channel: Channel) -> None:
        changes = list(self._sockets.changes(source, channel))
        if not (changes or self._refusals):
            return
        for _ in range(LAST_BURSTS):  # what came before the change counts before it
            if self._take(source) == _NOTHING:
                break
        now = self.clock()
        self._end_refused(now)
        broken = {link for link, up in changes if not up}
        for link, up in changes:
            if up:
                self.core.links.connected(link, channel, now, at_once=link in broken)
            else:
                self.core.links.disconnected(link, channel, now)
        self.pump()

    def _refused(self, link: int, error: AuthenticationError | None) -> None:
        """Note a failed handshake; its link is closed when nobody works with it any more."""
        self._refusals.append((link, error))

    def _end_refused(self, now: float) -> None:
        refusals, self._refusals = self._refusals, []
        for link, error in refusals:
            self.core.links.refused(link, error, now)

    def _take(self, source: int) -> tuple[int, int]:
        """Give the core what came, at most a burst; return how many messages and body bytes."""
        now = self.clock()
        receive = self.core.links.receive
        count = size = 0
        for link, channel, frames in self._sockets.messages(source):
            if channel is Channel.OUTPUT:
                receive(link, frames, now)
            else:
                self.core.links.announced(link, frames[0], now)
            count += 1
            size += len(frames[0])
            if size >= BURST_BYTES:
                break
        return count, size

    def _loads(self) -> None:
        now = self.clock()
        for frames in self._sockets.loads():
            self.core.loads.receive(frames, now)
        self.pump()


_NOTHING: Final = (0, 0)


def _nothing() -> None:
    """Nobody wants to know."""
