"""Ports: bound as the settings say, or an error that names the field."""

import errno
from typing import Any, Final

import zmq

PORT_REMEDY: Final = "give another port, or free this one"


class BindError(Exception):
    """An exposed address cannot be bound; the text names the field."""


def bind(socket: "zmq.Socket[bytes]", host: str, port: int, field: str) -> int:
    """Bind a socket; return the port.

    Raises:
        BindError: that is not possible.
    """
    literal = f"[{host}]" if ":" in host else host
    try:
        socket.bind(f"tcp://{literal}:{port}")
    except zmq.ZMQError as error:
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            what = "is in use" if error.errno == errno.EADDRINUSE else "is not allowed"
            raise BindError(
                f"transport.{field}: port {port} on {host} {what}; {PORT_REMEDY}"
            ) from error
        raise BindError(
            f"transport.host: cannot listen on {host}: {error.strerror}; give a name or IP "
            "address of this host without brackets, or *"
        ) from error
    endpoint: Any = socket.get(zmq.LAST_ENDPOINT)
    return int(endpoint.rpartition(b":")[2])
