"""Sockets with the options of vLLM's native protocol: queues that never fill, no IPv6 unless
the address is one."""

import errno
import socket as sockets
from typing import Any, Final

import zmq

from enginecore_client.errors import AddressError

Socket = zmq.Socket[bytes]

_CONNECTS: Final = frozenset({zmq.PUSH, zmq.SUB, zmq.XSUB})
_RECEIVES: Final = frozenset({zmq.PULL, zmq.DEALER, zmq.ROUTER})
_SENDS: Final = frozenset({zmq.PUSH, zmq.DEALER, zmq.ROUTER})


def make_zmq_socket(
    context: zmq.Context[Any],
    address: str,
    kind: int,
    *,
    bind: bool | None = None,
    identity: bytes | None = None,
    linger: int | None = None,
) -> Socket:
    """Return a socket that is bound or connected to `address`.

    A PULL, DEALER or ROUTER receives without limit, a PUSH, DEALER or ROUTER sends without
    limit: whoever uses one bounds what is under way by other means.

    Args:
        context: stays the caller's.
        address: `tcp://host:port` (port 0 for a free one when bound, IPv6 in brackets),
            `ipc://path` or `inproc://name`.
        kind: `zmq.PULL` and so on.
        bind: whether to bind; by default PUSH, SUB and XSUB connect and all others bind.
        identity: the routing id.
        linger: milliseconds that closing waits for messages to leave.

    Raises:
        AddressError: the address cannot be bound or connected to; no socket is left.
    """
    socket = unattached(context, address, kind, identity=identity, linger=linger)
    try:
        attach(socket, address, bind=kind not in _CONNECTS if bind is None else bind)
    except AddressError:
        socket.close(0)
        raise
    return socket


def unattached(
    context: zmq.Context[Any],
    address: str,
    kind: int,
    *,
    identity: bytes | None = None,
    linger: int | None = None,
) -> Socket:
    """Return the same socket before it is bound or connected, for more options."""
    socket: Socket = context.socket(kind)
    if kind in _RECEIVES:
        socket.setsockopt(zmq.RCVHWM, 0)
    if kind in _SENDS:
        socket.setsockopt(zmq.SNDHWM, 0)
    if identity is not None:
        socket.setsockopt(zmq.ROUTING_ID, identity)
    if linger is not None:
        socket.setsockopt(zmq.LINGER, linger)
    if is_ipv6(address):
        socket.setsockopt(zmq.IPV6, 1)
    return socket


def attach(socket: Socket, address: str, *, bind: bool) -> None:
    """Bind or connect a socket.

    Raises:
        AddressError: that is not possible; the text says why.
    """
    try:
        if bind:
            socket.bind(address)
        else:
            socket.connect(address)
    except zmq.ZMQError as error:
        raise AddressError(_problem(address, error, bind=bind)) from error


def last_endpoint(socket: Socket) -> str:
    """Return where a socket is bound, with the port it got."""
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)


def is_ipv6(address: str) -> bool:
    """Say whether the host of an address is an IPv6 literal."""
    return address.startswith("tcp://[")


def check_free(address: str) -> None:
    """Refuse an ipc path that is in use: libzmq would take it away from whoever has it.

    Raises:
        AddressError: somebody listens there.
    """
    scheme, _, path = address.partition("://")
    if scheme != "ipc" or "\0" in path:
        return
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except OSError:
            return
    raise AddressError(
        f"address {address!r} cannot be bound: another process listens there; give another path"
    )


def _problem(address: str, error: zmq.ZMQError, *, bind: bool) -> str:
    what = "bound" if bind else "connected to"
    remedies = {
        errno.EADDRINUSE: "; another process listens there, or give port 0 for a free one",
        errno.EADDRNOTAVAIL: "; no interface of this machine has that address",
        errno.ENODEV: "; give an IP of this machine, an interface's name, or * for all",
        errno.ENAMETOOLONG: "; give a shorter path (for engines that a client starts: set TMPDIR)",
        errno.ENOENT: "; make its directory first",
        errno.EACCES: "; give a directory that this account may write",
        errno.EINVAL: "; write tcp://host:port (IPv6 in brackets) or ipc://path",
    }
    remedy = remedies.get(error.errno or 0, "")
    return f"address {address!r} cannot be {what}: {zmq.strerror(error.errno or 0)}{remedy}"
