"""Connection events of a bound socket, by file descriptor."""

import contextlib
from collections.abc import Callable
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from enginecore_server.readers import SocketReader

_EVENTS = (
    zmq.EVENT_ACCEPTED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | (zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
)


class ConnectionMonitor:
    """Reports who came and who went.

    Args:
        socket: a socket that is not bound yet.
        accepted: called with the fd and the local endpoint of a new connection.
        disconnected: called with the fd of one that broke.
        refused: called for a connection that failed its ZMQ handshake.
    """

    def __init__(
        self,
        socket: "zmq.Socket[bytes]",
        accepted: Callable[[int, str], None],
        disconnected: Callable[[int], None],
        refused: Callable[[], None],
    ) -> None:
        self._socket = socket
        self._accepted = accepted
        self._disconnected = disconnected
        self._refused = refused
        self._monitor: zmq.Socket[Any] = socket.get_monitor_socket(int(_EVENTS))
        self._reader = SocketReader(self._monitor, self.drain)

    def drain(self) -> bool:
        """Handle all events that are there. fds are reused, so do this before handling a
        message that names one."""
        while True:
            try:
                frames = self._monitor.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return False
            event = parse_monitor_message(frames)
            kind, value = event["event"], int(event["value"])
            if kind == zmq.EVENT_ACCEPTED:
                self._accepted(value, event["endpoint"].decode())
            elif kind == zmq.EVENT_DISCONNECTED:
                self._disconnected(value)
            else:
                self._refused()

    def poke(self) -> None:
        """Handle events whose wake-up was missed."""
        self._reader.poke()

    def close(self) -> None:
        """Stop reporting."""
        self._reader.close()
        with contextlib.suppress(zmq.ZMQError):
            self._socket.disable_monitor()
        self._monitor.close(linger=0)
