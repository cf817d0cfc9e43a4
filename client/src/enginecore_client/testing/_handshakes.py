"""Somebody who answers the handshake of engines that no client launched."""

import threading
from typing import Any

import msgspec
import zmq

from enginecore_client import ClientAddresses
from enginecore_wire.handshake import HELLO, EngineAddresses, EngineInit, EngineStatus


class Handshakes:
    """Answers every HELLO on loopback with the addresses of clients; a context manager.

    Args:
        addresses: item i of its lists is client i's.
    """

    def __init__(self, addresses: ClientAddresses) -> None:
        self.statuses: list[tuple[bytes, str]] = []
        init = EngineInit(
            EngineAddresses(list(addresses.input_address), list(addresses.output_address))
        )
        self._init = msgspec.msgpack.encode(init)
        self._context: zmq.Context[Any] = zmq.Context()
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind("tcp://127.0.0.1:0")
        self.port = int(self._socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])
        self._thread = threading.Thread(target=self._run, name="handshakes")
        self._thread.start()

    def __enter__(self) -> "Handshakes":
        return self

    def __exit__(self, *exc: object) -> None:
        self._context.term()  # ends the thread, which closes its socket
        self._thread.join()

    def _run(self) -> None:
        try:
            while True:
                identity, body = self._socket.recv_multipart()
                status = msgspec.msgpack.decode(body, type=EngineStatus).status
                self.statuses.append((identity, status))
                if status == HELLO:
                    self._socket.send_multipart([identity, self._init])
        except zmq.ContextTerminated:
            self._socket.close(0)
