"""The sockets towards the engine: handshake, one input, one output per slot."""

import contextlib
import os
import shutil
import socket as sockets
import struct
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import zmq

from enginecore_server.monitors import ConnectionMonitor, Refusal
from enginecore_server.readers import BURST, SocketReader
from enginecore_wire.handshake import EngineAddresses

IPC_PATH_BYTES: Final = 107
"""The longest path a Unix socket takes."""

_FIRST: Final = int(zmq.NOBLOCK | zmq.SNDMORE)
_NOW: Final = int(zmq.NOBLOCK)

Payload = bytes | zmq.Frame

Rests = dict[int, list[zmq.Frame]]
"""The further frames of those messages of a burst that have any, by their place in it."""


class LinkError(Exception):
    """The sockets towards the engine cannot be opened; the text says what to change."""


class EngineListener(Protocol):
    """Whoever is told what the engine sends. All methods are called on the event loop."""

    def handshake_message(self, identity: bytes, body: bytes) -> None:
        """A message came on the handshake socket."""

    def input_message(self, frames: Sequence[bytes]) -> None:
        """A message (the READY payload) came on the engine's input socket."""

    def output_messages(self, firsts: list[zmq.Frame], rests: Rests, since: float) -> None:
        """Messages came on the engine's output connections, in this order.

        `since` is when the first was about to be read, in monotonic seconds.
        """

    def engine_connected(self, pid: int) -> None:
        """The EngineCore process connected; called once per connection to the input."""

    def engine_disconnected(self) -> None:
        """A connection of the engine to its input or an output broke."""


class EngineLink:
    """One engine's sockets, bound on the loopback (handshake) and in a private directory.

    The engine dials one address per slot, and all of them end in one PULL: one wake-up serves
    the outputs of all clients. Which slot a message came through is told by its connection.

    Args:
        context: owns the sockets.
        slots: output addresses to offer; slot 0 is the server's own.
        listener: told what comes.

    Raises:
        LinkError: the private directory's path is too long for a Unix socket.
    """

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", slots: int, listener: EngineListener
    ) -> None:
        self._listener = listener
        self._identity = b""
        self._slot_of_fd: dict[int, int] = {}
        self._directory = tempfile.mkdtemp(prefix="enginecore-")
        paths = [f"{self._directory}/{name}" for name in ("in", *map(str, range(slots)))]
        longest = max(paths, key=len)
        if len(os.fsencode(longest)) > IPC_PATH_BYTES:
            shutil.rmtree(self._directory)
            raise LinkError(
                f"socket path {longest} is longer than {IPC_PATH_BYTES} bytes; set TMPDIR to a "
                "shorter directory"
            )
        self._slot_of_path = {path: slot for slot, path in enumerate(paths[1:])}
        self._handshake = context.socket(zmq.ROUTER)
        self._input = context.socket(zmq.ROUTER)
        self._output = context.socket(zmq.PULL)
        for socket in (self._handshake, self._input):
            socket.set(zmq.ROUTER_MANDATORY, 1)
            socket.set(zmq.SNDHWM, 0)
        for socket in (self._handshake, self._input, self._output):
            socket.set(zmq.RCVHWM, 0)
        # pyzmq's own `send` in Python costs as much again as sending; this is the C one under it.
        self._send: Callable[..., object] = super(zmq.Socket, self._input).send
        self._monitors = [
            ConnectionMonitor(self._input, self._input_accepted, self._lost, _ignore),
            ConnectionMonitor(self._output, self._output_accepted, self._lost, _ignore),
        ]
        self._handshake.bind("tcp://127.0.0.1:0")
        self._input.bind(f"ipc://{paths[0]}")
        for path in paths[1:]:
            self._output.bind(f"ipc://{path}")
        self.addresses = EngineAddresses(
            [f"ipc://{paths[0]}"], [f"ipc://{path}" for path in paths[1:]]
        )
        endpoint = self._handshake.get(zmq.LAST_ENDPOINT)
        assert isinstance(endpoint, bytes)
        self.handshake_port = int(endpoint.rpartition(b":")[2])
        self._readers = [
            SocketReader(self._handshake, self._drain_handshake),
            SocketReader(self._input, self._drain_input),
            SocketReader(self._output, self._drain_output),
        ]

    def answer_handshake(self, identity: bytes, body: bytes) -> None:
        """Answer the engine on the handshake socket; from now on it is the one to send to."""
        self._identity = identity
        with contextlib.suppress(zmq.ZMQError):
            self._handshake.send_multipart([identity, body], zmq.NOBLOCK)

    def send(self, kind: bytes, body: Payload, aux: Sequence[Payload] = ()) -> bool:
        """Send one message to the engine; return False if it is not connected (any more)."""
        send = self._send
        try:
            send(self._identity, _FIRST)
        except zmq.ZMQError:
            return False
        send(kind, _FIRST)
        if not aux:
            send(body, _NOW, isinstance(body, bytes))
            return True
        frames = (body, *aux)
        last = len(frames) - 1
        for index, frame in enumerate(frames):
            send(frame, _FIRST if index < last else _NOW, isinstance(frame, bytes))
        return True

    def slot_of(self, frame: zmq.Frame) -> int | None:
        """Return the slot through which a message came."""
        return self._slot_of_fd.get(int(frame.get("__fd")))

    def poke(self) -> None:
        """Handle what missed its wake-up."""
        for monitor in self._monitors:
            monitor.poke()
        for reader in self._readers:
            reader.poke()

    def close(self) -> None:
        """Close the sockets and remove the directory."""
        for reader in self._readers:
            reader.close()
        for monitor in self._monitors:
            monitor.close()
        for socket in (self._handshake, self._input, self._output):
            socket.close(linger=0)
        shutil.rmtree(self._directory, ignore_errors=True)

    def _drain_handshake(self) -> bool:
        for _ in range(BURST):
            try:
                frames = self._handshake.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return False
            self._listener.handshake_message(frames[0], frames[-1])
        return True

    def _drain_input(self) -> bool:
        for _ in range(BURST):
            try:
                frames = self._input.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return False
            self._listener.input_message(frames[1:])
        return True

    def _drain_output(self) -> bool:
        """Take a burst and hand it over as one: what has to be done once is done once for all."""
        receive = self._output.recv
        firsts: list[zmq.Frame] = []
        rests: Rests = {}
        full = True
        since = time.monotonic()
        try:
            for index in range(BURST):
                first = receive(_NOW, False)
                if first.more:
                    rests[index] = self._rest()
                firsts.append(first)
        except zmq.Again:
            full = False
        self._listener.output_messages(firsts, rests, since)
        return full

    def _rest(self) -> list[zmq.Frame]:
        frames = [self._output.recv(_NOW, False)]
        while frames[-1].more:
            frames.append(self._output.recv(_NOW, False))
        return frames

    def _input_accepted(self, fd: int, _endpoint: str) -> None:
        pid = _peer_pid(fd)
        if pid is not None:
            self._listener.engine_connected(pid)

    def _output_accepted(self, fd: int, endpoint: str) -> None:
        self._slot_of_fd[fd] = self._slot_of_path[endpoint.removeprefix("ipc://")]

    def _lost(self, _fd: int) -> None:
        self._listener.engine_disconnected()


def _peer_pid(fd: int) -> int | None:
    """Return the process at the other end of a Unix socket, or None if it is gone."""
    try:
        with sockets.socket(fileno=os.dup(fd)) as peer:
            credentials: Any = peer.getsockopt(
                sockets.SOL_SOCKET, sockets.SO_PEERCRED, struct.calcsize("3i")
            )
    except OSError:
        return None
    pid: int = struct.unpack("3i", credentials)[0]
    return pid if pid > 0 else None


def _ignore(_reason: Refusal) -> None:
    """A stranger on the loopback failed its handshake; nothing follows from it."""
