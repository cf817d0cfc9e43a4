"""The address to listen on: libzmq binds to no name, so one is resolved before anything binds."""

import contextlib
import ipaddress
import socket as sockets

import msgspec

from enginecore_server.binding import BindError
from enginecore_wire.contract import ServerConfig

EVERY_INTERFACE = "*"


def resolve_listening(config: ServerConfig) -> ServerConfig:
    """Return the settings with an IP address or `*` as host.

    A name is resolved once: a server's sockets stay where they are, whatever the name means later.

    Raises:
        BindError: the name does not resolve.
    """
    host = config.transport.host
    if host == EVERY_INTERFACE:
        return config
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return config
    try:
        found = sockets.getaddrinfo(host, None, type=sockets.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise BindError(
            f"transport.host: cannot listen on {host}: {reason}; give a name or IP address of "
            "this host without brackets, or *"
        ) from error
    transport = msgspec.structs.replace(config.transport, host=str(found[0][4][0]))
    return msgspec.structs.replace(config, transport=transport)
