"""Free ports, chosen by the kernel."""

from __future__ import annotations

import contextlib
import socket


def free_ports(count: int, address: str = "127.0.0.1") -> list[int]:
    """Returns distinct TCP ports that were free on ``address`` a moment ago.

    All are bound at once before any is given out.  Between here and the
    server's own bind another process may take one, so a server that finds its
    port taken must be started again with another one.
    """
    with contextlib.ExitStack() as stack:
        ports = []
        for _ in range(count):
            listener = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            listener.bind((address, 0))
            ports.append(int(listener.getsockname()[1]))
    return ports
