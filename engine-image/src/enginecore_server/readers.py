"""ZMQ sockets on an asyncio loop: bursts of non-blocking receives, woken by the socket's FD."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import zmq

BURST: Final = 64
"""Messages taken from one socket before the others get their turn."""

_EVENTS: Final = zmq.EVENTS
_POLLIN: Final = int(zmq.POLLIN)


class SocketReader:
    """Calls `drain` whenever `socket` may have messages.

    The FD of a ZMQ socket is edge-triggered: `drain` must receive until there is nothing left
    (and return False) or stop after BURST messages (and return True, to be called again).
    A send on the same socket can swallow an edge; `poke` after sends makes up for it.
    """

    def __init__(self, socket: "zmq.Socket[Any]", drain: Callable[[], bool]) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = socket
        self._drain = drain
        self._scheduled = False
        self._closed = False
        self._fd = socket.fileno()
        self._loop.add_reader(self._fd, self._wake)

    def poke(self) -> None:
        """Drain if messages are waiting."""
        if not (self._scheduled or self._closed) and self._socket.getsockopt(_EVENTS) & _POLLIN:  # type: ignore[operator]
            self._wake()

    def look(self) -> None:
        """Drain whether or not messages are known to wait."""
        if not self._closed:
            self._wake()

    def close(self) -> None:
        """Stop reading; the socket stays open."""
        self._closed = True
        self._loop.remove_reader(self._fd)

    def _wake(self) -> None:
        if not self._scheduled:
            self._run()

    def _run(self) -> None:
        self._scheduled = False
        if not self._closed and self._drain():
            self._scheduled = True
            self._loop.call_soon(self._run)
