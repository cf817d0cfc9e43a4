"""The clients' connections, by socket and file descriptor."""

import contextlib
import os
import socket as sockets
from collections.abc import Callable, Mapping
from functools import partial

import zmq

from enginecore_server.monitors import ConnectionMonitor, Refusal
from enginecore_server.sessions import Side


class Connections:
    """Tells over which connection a message came, and breaks connections.

    Descriptors are used again at once, while messages of a closed connection may still be read:
    what the monitors know is handled before any descriptor is believed.

    Args:
        routers: the sockets, which are not bound yet.
        disconnected: called with the fd of a connection that broke.
        refused: called with the reason for one that failed its ZMQ handshake; `disconnected`
            follows.
    """

    def __init__(
        self,
        routers: "Mapping[Side, zmq.Socket[bytes]]",
        disconnected: Callable[[Side, int], None],
        refused: Callable[[Side, Refusal], None],
    ) -> None:
        self._monitors = {
            side: ConnectionMonitor(
                router,
                lambda _fd, _endpoint: None,
                partial(disconnected, side),
                partial(refused, side),
            )
            for side, router in routers.items()
        }
        self._unheard: dict[Side, set[int]] = {side: set() for side in routers}

    def of(self, side: Side, frame: zmq.Frame) -> int | None:
        """Return the fd over which a message came, or None if that connection is closed. Where it
        could be either of two (`unheard`), the one that stands is cut: its client comes again."""
        monitor = self._monitors[side]
        monitor.drain()
        fd = int(frame.get("__fd"))
        if not monitor.stands(fd):
            return None
        if fd in self._unheard[side]:
            self.cut(fd)
            return None
        return fd

    def unheard(self, side: Side, fd: int) -> None:
        """Note the end of a connection that had said nothing so far. What it sent may wait to be
        read, and its fd be the next one's."""
        self._unheard[side].add(fd)

    def all_read(self, side: Side) -> None:
        """Note that nothing waits to be read: what comes now is of connections that stand."""
        self._unheard[side].clear()

    def cut(self, fd: int) -> None:
        """Break a connection, which was seen standing just now."""
        with contextlib.suppress(OSError), sockets.socket(fileno=os.dup(fd)) as peer:
            peer.shutdown(sockets.SHUT_RDWR)

    def cut_all(self, fds: "Mapping[Side, int | None]") -> None:
        """Break those of a client's connections that stand."""
        for monitor in self._monitors.values():
            monitor.drain()
        for fd in fds.values():
            if fd is not None:
                self.cut(fd)

    def poke(self) -> None:
        """Handle events whose wake-up was missed."""
        for monitor in self._monitors.values():
            monitor.poke()

    def close(self) -> None:
        """Stop reporting."""
        for monitor in self._monitors.values():
            monitor.close()
