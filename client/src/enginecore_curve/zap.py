"""ZMQ asks who may connect (ZAP, RFC 27); the answer comes from the list of keys.

libzmq asks once per connection, before the peer can send or get a byte. Who is let in has its
public key as `User-Id` of every message.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import zmq
from zmq.utils import z85

_ADDRESS: Final = "inproc://zeromq.zap.01"
_FRAMES: Final = 9
_VERSION: Final = b"1.0"
_LET_IN: Final = b"200"
_REFUSED: Final = b"400"


class ZapHandler:
    """Answers on the running event loop. One per context, made before its sockets are bound.

    Args:
        context: that of the sockets; it stays the caller's.
        may_enter: says whether a socket of this domain takes this public key.
    """

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", may_enter: Callable[[bytes, str], bool]
    ) -> None:
        self._may_enter = may_enter
        self._loop = asyncio.get_running_loop()
        self._socket = context.socket(zmq.ROUTER)
        self._socket.linger = 0
        self._socket.bind(_ADDRESS)
        self._loop.add_reader(self._socket.fileno(), self.poke)

    def poke(self) -> None:
        """Answer what was asked. A receive that finds nothing comes last: it rearms the fd."""
        while not self._socket.closed:
            try:
                question = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._socket.send_multipart(self._answer(question))

    def close(self) -> None:
        """Let nobody in any more."""
        if not self._socket.closed:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()

    def _answer(self, question: list[bytes]) -> list[bytes]:
        """Return the reply to `[asker, "", version, id, domain, peer, routing id, how, key]`."""
        if len(question) == _FRAMES and question[7] == b"CURVE":
            key = z85.encode(question[8])
            if self._may_enter(question[4], key.decode()):
                return [*question[:2], _VERSION, question[3], _LET_IN, b"", key, b""]
        number = question[3] if len(question) > 3 else b""
        return [*question[:2], _VERSION, number, _REFUSED, b"key not allowed", b"", b""]
