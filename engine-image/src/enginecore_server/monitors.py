"""Connection events of a bound socket, by file descriptor."""

import contextlib
from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final

import zmq
from zmq.utils.monitor import parse_monitor_message

from enginecore_server.readers import SocketReader

_EVENTS = (
    zmq.EVENT_ACCEPTED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | (zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
)


class Refusal(StrEnum):
    """Why a connection came to nothing."""

    UNKNOWN_KEY = "unknown_key"
    MECHANISM = "mechanism"
    WRONG_SERVER_KEY = "wrong_server_key"
    PROTOCOL = "protocol"
    BROKEN_OFF = "broken_off"
    NO_SESSION = "no_session"


_PROTOCOL_REFUSALS: Final = {
    int(zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH): Refusal.MECHANISM,
    int(zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC): Refusal.WRONG_SERVER_KEY,
}


class ConnectionMonitor:
    """Reports who came and who went.

    Args:
        socket: a socket that is not bound yet.
        accepted: called with the fd and the local endpoint of a new connection.
        disconnected: called with the fd of one that broke.
        refused: called with the reason for a connection that failed its ZMQ handshake;
            `disconnected` follows.
    """

    def __init__(
        self,
        socket: "zmq.Socket[bytes]",
        accepted: Callable[[int, str], None],
        disconnected: Callable[[int], None],
        refused: Callable[[Refusal], None],
    ) -> None:
        self._socket = socket
        self._accepted = accepted
        self._disconnected = disconnected
        self._refused = refused
        self._open: set[int] = set()
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
                self._open.add(value)
                self._accepted(value, event["endpoint"].decode())
            elif kind == zmq.EVENT_DISCONNECTED:
                self._open.discard(value)
                self._disconnected(value)
            else:
                self._refused(_reason(kind, value))

    def stands(self, fd: int) -> bool:
        """Say whether the connection with this fd is there; `drain` first."""
        return fd in self._open

    def poke(self) -> None:
        """Handle events whose wake-up was missed."""
        self._reader.poke()

    def close(self) -> None:
        """Stop reporting."""
        self._reader.close()
        with contextlib.suppress(zmq.ZMQError):
            self._socket.disable_monitor()
        self._monitor.close(linger=0)


def _reason(event: int, value: int) -> Refusal:
    if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
        return Refusal.UNKNOWN_KEY
    if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
        return _PROTOCOL_REFUSALS.get(value, Refusal.PROTOCOL)
    return Refusal.BROKEN_OFF
