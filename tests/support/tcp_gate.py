"""A TCP forwarder on loopback that a test can hold, or cut."""

import select
import socket
import threading


class TcpGate:
    """Forwards connections to a port of this host; a context manager.

    Held, it reads nothing more from clients, so that their kernel's buffers fill and what they
    send stays with them. Answers pass all the time. Cut, all connections break, with what is on
    its way in them; new ones are taken. Losing, it drops what the server sends until it is cut.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._open = threading.Event()
        self._open.set()
        self._stop = threading.Event()
        self._cut = threading.Event()
        self._mended = threading.Event()
        self._losing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tcp gate")
        self._thread.start()

    def hold(self) -> None:
        """Let nothing pass to the server."""
        self._open.clear()

    def release(self) -> None:
        """Let everything pass again."""
        self._open.set()

    def lose(self) -> None:
        """Drop answers, until the next cut."""
        self._losing.set()

    def cut(self) -> None:
        """Break every connection there is; returns when they are broken."""
        self._mended.clear()
        self._cut.set()
        self._mended.wait()

    def __enter__(self) -> "TcpGate":
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()
        self._listener.close()

    def _run(self) -> None:
        ways: dict[socket.socket, socket.socket] = {}
        clients: set[socket.socket] = set()
        while not self._stop.is_set():
            if self._cut.is_set():
                for end in ways:
                    end.close()
                ways.clear()
                clients.clear()
                self._cut.clear()
                self._losing.clear()
                self._mended.set()
            held = set() if self._open.is_set() else clients
            readable, _, _ = select.select(
                [self._listener, *(end for end in ways if end not in held)], [], [], 0.01
            )
            for end in readable:
                if end is self._listener:
                    client, _ = end.accept()
                    server = socket.create_connection(("127.0.0.1", self._target))
                    ways[client], ways[server] = server, client
                    clients.add(client)
                    continue
                if end not in ways:
                    continue
                data = end.recv(1 << 20)
                if data and end not in clients and self._losing.is_set():
                    continue
                if data:
                    ways[end].sendall(data)
                else:
                    for closed in (end, ways.pop(end)):
                        ways.pop(closed, None)
                        clients.discard(closed)
                        closed.close()
        for end in ways:
            end.close()
