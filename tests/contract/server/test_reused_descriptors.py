"""A client that left before it was heard, and the next one, whose connections have its descriptors.

The clients are processes of their own, so that nobody else in this one takes the descriptors. The
server's event loop stands still while they come and go: nothing here gives it a turn.
"""

import os
import socket as sockets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import TracebackType
from typing import Any

import pytest
import zmq

from enginecore_server.desk import ClientDesk
from enginecore_server.exposed import ExposedSockets
from enginecore_server.model_facts import ModelInputs
from enginecore_server.sessions import Side
from enginecore_server.state import ServerState
from enginecore_wire.contract import ModelConfig, ServerConfig
from enginecore_wire.control import Hello
from enginecore_wire.frames import encode_control
from support.eventually import eventually, eventually_async
from support.pod import LOOPBACK

_PROGRAM = """
import sys, zmq
name, hello, *ports = sys.stdin.readline().split()
context, poller, sockets = zmq.Context(), zmq.Poller(), {}
poller.register(sys.stdin)
for port in ports:
    socket = context.socket(zmq.DEALER)
    socket.set(zmq.ROUTING_ID, bytes.fromhex(name))
    monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
    socket.connect("tcp://127.0.0.1:" + port)
    assert monitor.poll(10000)
    monitor.recv_multipart()
    socket.send_multipart([bytes([0x80]), bytes.fromhex(hello)])
    sockets[monitor] = socket
    poller.register(monitor, zmq.POLLIN)
print("there", flush=True)
while sys.stdin.fileno() not in dict(came := poller.poll()):
    for monitor, _ in came:
        monitor.recv_multipart()
        sockets[monitor].send_multipart([bytes([0x80]), bytes.fromhex(hello)])
for monitor, socket in sockets.items():
    socket.disable_monitor()
    monitor.close()
    socket.close(10000)
context.term()
"""


class Client:
    """A process that says HELLO on both sockets whenever they are connected."""

    def __init__(self) -> None:
        self.identity, self.nonce = os.urandom(16), os.urandom(8)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
        )  # fmt: skip

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._process.kill()
        self._process.communicate()

    def come(self, exposed: ExposedSockets) -> None:
        """Connect, and say HELLO first on the input, then on the output."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        body = encode_control(Hello(nonce=self.nonce))[1]
        ports = exposed.input_port, exposed.output_port
        print(self.identity.hex(), body.hex(), *ports, file=self._process.stdin)
        assert self._process.stdout.readline() == "there\n"

    def leave(self) -> None:
        """Send what is to be sent and go."""
        assert self._process.stdin is not None
        print(file=self._process.stdin)
        assert self._process.wait(10) == 0


class Link:
    """Stands for an engine that is not there."""

    def send(self, _kind: bytes, _body: bytes, _aux: Any = ()) -> bool:
        return False


@contextmanager
def serving() -> Iterator[tuple[ServerState, ExposedSockets]]:
    """Open the exposed sockets of a server whose engine starts."""
    config = ServerConfig(name="n", model=ModelConfig("/m"), transport=LOOPBACK)
    state = ServerState(config, ModelInputs(100), 7)
    desk = ClientDesk(state, Link())  # type: ignore[arg-type]
    with zmq.Context() as context:
        exposed = ExposedSockets(context, LOOPBACK, 1 << 20, desk)
        desk.open(exposed)
        try:
            yield state, exposed
        finally:
            exposed.close(0)


def descriptors(exposed: ExposedSockets) -> dict[Side, set[int]]:
    """Return the descriptors of the clients' connections."""
    ports = {exposed.input_port: Side.INPUT, exposed.output_port: Side.OUTPUT}
    found: dict[Side, set[int]] = {side: set() for side in Side}
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with sockets.socket(fileno=os.dup(int(name))) as peer:
                peer.getpeername()
                own = peer.getsockname()
                if isinstance(own, tuple) and own[1] in ports:
                    found[ports[own[1]]].add(int(name))
    return found


@pytest.mark.parametrize("known", [False, True], ids=["unknown", "known"])
async def test_nobody_gets_the_descriptors_of_the_next_client(known: bool) -> None:
    with serving() as (state, exposed), ExitStack() as stack:
        first, again, second = (stack.enter_context(Client()) for _ in range(3))
        again.identity, again.nonce = first.identity, first.nonce
        book = state.book
        if known:
            first.come(exposed)
            await eventually_async(lambda: book.find(first.identity), "it has a session")
            first.leave()
            await eventually_async(
                lambda: set(book.sessions()[0].fds.values()) == {None}, "its end was noticed"
            )
        again.come(exposed)
        left = descriptors(exposed)
        again.leave()
        eventually(lambda: not any(descriptors(exposed).values()), "its connections are closed")
        second.come(exposed)
        assert descriptors(exposed) == left, "others than those to be tested"

        await eventually_async(lambda: book.find(second.identity), "the next one is served")
        session = book.find(first.identity)
        assert (session is not None) is known
        if session is not None:
            assert session.held
            assert set(session.fds.values()) == {None}
        second.leave()
        await eventually_async(
            lambda: all(None in session.fds.values() for session in book.sessions()),
            "the next one's end is its own",
        )
