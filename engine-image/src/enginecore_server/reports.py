"""Load reports to the coordinator: a PUSH that survives its peer's restarts and moves."""

import asyncio
import contextlib
import ipaddress
import logging
import socket as sockets
from typing import Final

import msgspec
import zmq

from enginecore_curve.keys import KeyFileError, KeyPair, connect_curve, read_public_keys
from enginecore_wire.outputs import EngineCoreOutputs, SchedulerStats

_RESOLVE_AGAIN_SECONDS: Final = 3.0
_LAST_PORT: Final = 65535
_PORT_DIGITS: Final = 5
_OPTIONS: Final = (
    (zmq.SNDHWM, 10),
    (zmq.LINGER, 0),
    (zmq.IMMEDIATE, 1),
    (zmq.IPV6, 1),
    (zmq.HEARTBEAT_IVL, 1000),
    (zmq.HEARTBEAT_TIMEOUT, 2500),
    (zmq.HEARTBEAT_TTL, 3500),
    (zmq.HANDSHAKE_IVL, 2000),
    (zmq.CONNECT_TIMEOUT, 1500),
    (zmq.RECONNECT_IVL, 100),
    (zmq.RECONNECT_IVL_MAX, 1000),
)

_log = logging.getLogger(__name__)


class AddressError(ValueError):
    """An address that is no tcp://host:port."""


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of `tcp://host:port`; IPv6 hosts come in brackets.

    Raises:
        AddressError: it is no such address.
    """
    scheme, separator, rest = address.partition("://")
    host, colon, port = rest.rpartition(":")
    number = int(port) if port.isascii() and port.isdigit() and len(port) <= _PORT_DIGITS else 0
    bracketed = host.startswith("[") and host.endswith("]")
    if (
        scheme != "tcp"
        or not (separator and colon and host and host.isprintable() and 1 <= number <= _LAST_PORT)
        or bracketed != (":" in host)
    ):
        raise AddressError(
            f"coordinator_address: {address!r} is not tcp://host:port with a port from 1 to "
            f"{_LAST_PORT} (IPv6 in brackets)"
        )
    return host.strip("[]"), number


async def resolve(host: str, port: int) -> str:
    """Return `tcp://IP:port` for a host. libzmq would resolve in its I/O thread and hold up
    every other connection.

    Raises:
        OSError: the name does not resolve.
    """
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return _endpoint(host, port)
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=sockets.SOCK_STREAM)
    except UnicodeError as error:  # a label longer than names may have
        raise OSError(str(error)) from error
    return _endpoint(str(found[0][4][0]), port)


class CoordinatorKeys:
    """What a server needs to speak CURVE with a coordinator.

    Args:
        pair: the server's own keys.
        key: the coordinator's public key; empty: it is in the file.
        file: lists those that the coordinator may have: it may have got another one, or be about
            to, so that they are tried in turn.
    """

    def __init__(self, pair: KeyPair, key: str, file: str) -> None:
        self._pair = pair
        self._key = key
        self._file = file
        self._tried = 0

    def use(self, socket: "zmq.Socket[bytes]") -> None:
        """Have a socket speak only to who holds the next one's secret key.

        Raises:
            KeyFileError: the file has no keys.
        """
        keys = [self._key] if self._key else read_public_keys(self._file)
        connect_curve(socket, self._pair, keys[self._tried % len(keys)])
        self._tried += 1


class CoordinatorReports:
    """Sends `[rank, [], scheduler_stats, timestamp]` and drops what cannot be sent now.

    Args:
        context: owns the socket.
        address: `tcp://host:port`; the name is resolved again when nobody takes the reports.
        rank: index of this engine.
        keys: the server's and the coordinator's; None without CURVE.

    Raises:
        AddressError: the address is none.
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        address: str,
        rank: int,
        keys: CoordinatorKeys | None = None,
    ) -> None:
        self._context = context
        self._keys = keys
        self._host, self._port = split_address(address)
        self._rank = rank
        self._socket: zmq.Socket[bytes] | None = None
        self._failing_since: float | None = None
        self._tried = False
        self._connecting: asyncio.Task[None] | None = None

    def send(self, stats: SchedulerStats, timestamp: float, now: float) -> None:
        """Report; `now` is monotonic seconds."""
        body = msgspec.msgpack.encode(
            EngineCoreOutputs(self._rank, [], scheduler_stats=stats, timestamp=timestamp)
        )
        if self._socket is not None:
            try:
                self._socket.send(body, zmq.NOBLOCK)
            except zmq.Again:
                pass
            else:
                self._failing_since = None
                return
        if self._failing_since is None:
            self._failing_since = now
        waited = now - self._failing_since >= _RESOLVE_AGAIN_SECONDS
        if self._connecting is None and (waited or not self._tried):
            self._tried = True
            self._failing_since = now
            self._connecting = asyncio.create_task(self._connect())

    async def close(self) -> None:
        """Stop reporting."""
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        if self._socket is not None:
            self._socket.close(linger=0)

    async def _connect(self) -> None:
        try:
            endpoint = await resolve(self._host, self._port)
        except OSError as error:
            _log.warning("coordinator %s does not resolve: %s", self._host, error)
            return
        finally:
            self._connecting = None
        socket = self._context.socket(zmq.PUSH)
        for option, value in _OPTIONS:
            socket.set(option, value)
        try:
            if self._keys is not None:
                self._keys.use(socket)
        except KeyFileError as error:
            _log.warning("the coordinator's key: %s", error)
            socket.close()
            return
        if self._socket is not None:
            self._socket.close(linger=0)
        self._socket = socket
        self._socket.connect(endpoint)


def _endpoint(host: str, port: int) -> str:
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"
