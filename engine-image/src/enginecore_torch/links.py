"""The sockets of an engine process: handshake, input thread, output thread."""

import logging
import time
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any, NamedTuple

import msgspec
import zmq

from enginecore_wire.codec import MsgpackEncoder
from enginecore_wire.handshake import (
    HELLO,
    READY,
    EngineAddresses,
    EngineInit,
    EngineStatus,
    ReadyPayload,
    engine_identity,
)
from enginecore_wire.outputs import ENGINE_CORE_DEAD, EngineCoreOutputs

HANDSHAKE_LINGER_MS = 5000
OUTPUT_LINGER_MS = 4000

SIGNAL_SECONDS = 0.5
"""The longest wait without a look at signals: one that arrives just before a wait begins does
not end it."""

COORDINATOR = -1
"""The client index of messages that are for the coordinator."""

_SUBSCRIBE = b"\x01"
_COORDINATOR_READY = b"READY"

_LOG = logging.getLogger(__name__)


class HandshakeError(RuntimeError):
    """The handshake was not answered, or not as it should be."""


class Handshake:
    """The engine's side of the start-up handshake; closes its socket as a context manager."""

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", address: str, rank: int, local: bool
    ) -> None:
        """Dial `address`, where a launcher (or is about to) listen.

        Args:
            context: the process's sockets.
            address: ZMQ endpoint.
            rank: this engine's data-parallel rank.
            local: engine and launcher share a machine.
        """
        self._address = address
        self._local = local
        self._socket = make_socket(context, zmq.DEALER, address, identity=engine_identity(rank))

    def __enter__(self) -> "Handshake":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._socket.close(linger=HANDSHAKE_LINGER_MS if kind is None else 0)

    def begin(self, timeout: float) -> EngineAddresses:
        """Say HELLO and return where to dial.

        Args:
            timeout: seconds to wait for the answer.

        Raises:
            HandshakeError: no answer came in time, or it cannot be read.
        """
        self._send(HELLO)
        if not self._wait(timeout):
            raise HandshakeError(
                f"no answer to HELLO from {self._address} within {timeout:g} s; "
                "is the front end or engine server running there?"
            )
        try:
            init = msgspec.msgpack.decode(self._socket.recv(), type=EngineInit)
        except msgspec.DecodeError as error:
            raise HandshakeError(f"the answer to HELLO is not understood: {error}") from error
        if not init.addresses.inputs or not init.addresses.outputs:
            raise HandshakeError("the answer to HELLO names no input or no output address")
        return init.addresses

    def _wait(self, timeout: float) -> bool:
        """Say whether a message came in time; short waits let signal handlers run."""
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0:
            if self._socket.poll(int(1000 * min(left, SIGNAL_SECONDS))):
                return True
        return False

    def finish(self) -> None:
        """Say that the engine is ready."""
        self._send(READY)

    def _send(self, status: str) -> None:
        message = EngineStatus(status, local=self._local, headless=not self._local)
        self._socket.send(msgspec.msgpack.encode(message))


class Incoming(NamedTuple):
    """A message from a front end: its type byte, body, and the frames that follow."""

    kind: bytes
    body: bytes
    aux: list[bytes]


class InputThread:
    """Reads every input socket and hands each message to `deliver`, in this thread."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        addresses: EngineAddresses,
        rank: int,
        ready: ReadyPayload,
        deliver: Callable[[Incoming], None],
    ) -> None:
        """Start the thread; it says READY on every input.

        Args:
            context: ends the thread when it is terminated.
            addresses: where to dial.
            rank: this engine's data-parallel rank.
            ready: what to say.
            deliver: called with every message; must not raise.
        """
        self._context = context
        self._addresses = addresses
        self._identity = engine_identity(rank)
        self._ready = msgspec.msgpack.encode(ready)
        self._deliver = deliver
        Thread(target=self._run, name="engine-input", daemon=True).start()

    def _run(self) -> None:
        sockets: list[zmq.Socket[bytes]] = []
        try:
            coordinator = self._subscribe(sockets)
            for address in self._addresses.inputs:
                socket = make_socket(self._context, zmq.DEALER, address, identity=self._identity)
                sockets.append(socket)
                socket.send(self._ready)
            self._read(sockets, coordinator)
        except zmq.ContextTerminated:
            pass
        finally:
            for socket in sockets:
                socket.close(linger=0)

    def _subscribe(self, sockets: "list[zmq.Socket[bytes]]") -> "zmq.Socket[bytes] | None":
        """Subscribe to the coordinator, if there is one, and wait until it is ready."""
        address = self._addresses.coordinator_input
        if address is None:
            return None
        socket = make_socket(self._context, zmq.XSUB, address, identity=self._identity)
        sockets.append(socket)
        socket.send(_SUBSCRIBE)
        while socket.recv_multipart()[0] != _COORDINATOR_READY:
            pass
        return socket

    def _read(
        self, sockets: "list[zmq.Socket[bytes]]", coordinator: "zmq.Socket[bytes] | None"
    ) -> None:
        poller = zmq.Poller()
        for socket in sockets:
            poller.register(socket, zmq.POLLIN)
        while True:
            for socket, _ in poller.poll():
                frames = socket.recv_multipart()
                if socket is coordinator:
                    continue  # waves concern engines that run in lockstep; this one does not
                if len(frames) < 2:
                    _LOG.error("message of %d frames ignored: expected type and body", len(frames))
                    continue
                self._deliver(Incoming(frames[0], frames[1], frames[2:]))


class OutputThread:
    """Encodes messages and sends each to its client's output socket."""

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", addresses: EngineAddresses
    ) -> None:
        """Dial every output and start the thread.

        Args:
            context: the process's sockets.
            addresses: where to dial.
        """
        self.num_clients = len(addresses.outputs)
        self._queue: SimpleQueue[tuple[int, EngineCoreOutputs] | bytes | None] = SimpleQueue()
        self._outputs = [make_socket(context, zmq.PUSH, a) for a in addresses.outputs]
        self._coordinator = (
            make_socket(context, zmq.PUSH, addresses.coordinator_output)
            if addresses.coordinator_output is not None
            else None
        )
        self._thread = Thread(target=self._run, name="engine-output", daemon=True)
        self._thread.start()

    @property
    def has_coordinator(self) -> bool:
        """Whether anybody counts on load reports and lists of finished requests."""
        return self._coordinator is not None

    def put(self, client: int, message: EngineCoreOutputs) -> None:
        """Send `message` to a client, or to COORDINATOR."""
        self._queue.put((client, message))

    def close(self, dead: bool, timeout: float) -> None:
        """Send what is queued, and ENGINE_CORE_DEAD after it if `dead`; end the thread."""
        if dead:
            self._queue.put(ENGINE_CORE_DEAD)
        self._queue.put(None)
        self._thread.join(timeout)

    def _run(self) -> None:
        encoder = MsgpackEncoder()
        while (item := self._queue.get()) is not None:
            if isinstance(item, bytes):
                for socket in self._outputs:
                    socket.send(item)
                continue
            client, message = item
            try:
                frames: list[Any] = list(encoder.encode(message))
                self._socket(client).send_multipart(frames)
            except (TypeError, ValueError, OverflowError, LookupError):
                _LOG.exception("message to client %d dropped", client)
        for socket in self._sockets():
            socket.close(linger=OUTPUT_LINGER_MS)

    def _socket(self, client: int) -> "zmq.Socket[bytes]":
        if client == COORDINATOR:
            if self._coordinator is None:
                raise LookupError("there is no coordinator")
            return self._coordinator
        return self._outputs[client]

    def _sockets(self) -> "list[zmq.Socket[bytes]]":
        return self._outputs + ([self._coordinator] if self._coordinator is not None else [])


def make_socket(
    context: "zmq.Context[zmq.Socket[bytes]]",
    kind: int,
    address: str,
    identity: bytes | None = None,
) -> "zmq.Socket[bytes]":
    """Return a socket connected to `address`, with queues that never fill up, as vLLM's."""
    socket = context.socket(kind)
    if identity is not None:
        socket.setsockopt(zmq.IDENTITY, identity)
    if kind in (zmq.DEALER, zmq.XSUB):
        socket.setsockopt(zmq.RCVHWM, 0)
    if kind in (zmq.DEALER, zmq.PUSH):
        socket.setsockopt(zmq.SNDHWM, 0)
    if "[" in address:
        socket.setsockopt(zmq.IPV6, 1)
    socket.connect(address)
    return socket
