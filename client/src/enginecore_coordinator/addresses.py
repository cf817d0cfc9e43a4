"""Addresses to listen on: `tcp://host:port`, where port `*` takes a free one."""

import contextlib
import ipaddress
import socket as sockets


def is_address(address: str) -> bool:
    """Say whether libzmq means the same: it would take port 70000 for another one."""
    scheme, _, rest = address.partition("://")
    host, _, port = rest.rpartition(":")
    if scheme != "tcp" or not host:
        return False
    digits = port.isascii() and port.isdigit() and len(port) <= len("65535")
    return port == "*" or (digits and 1 <= int(port) <= 65535)


def resolve_listening(address: str) -> str:
    """Return an address with an IP address or `*` as host: libzmq binds to no name.

    Raises:
        OSError: the name does not resolve; its text has the name.
    """
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    if host == "*" or host.startswith("["):
        return address
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return address
    try:
        found = sockets.getaddrinfo(host, None, type=sockets.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise OSError(f"{host}: {reason}") from error
    resolved = str(found[0][4][0])
    return f"tcp://[{resolved}]:{port}" if ":" in resolved else f"tcp://{resolved}:{port}"
