"""What is sent to a session whose connection broke, or is to be sent once more."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest
import zmq

from enginecore_server.exposed import ExposedSockets
from enginecore_server.monitors import Refusal
from enginecore_server.sessions import ANYBODY, Session, Side
from enginecore_wire.contract import TransportConfig
from support.eventually import eventually_async
from support.pod import LOOPBACK


class Listener:
    """Takes note of who is connected."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.slow: list[Session] = []

    def client_message(self, _side: Side, identity: bytes, _frames: list[zmq.Frame]) -> None:
        self.heard.append(identity)

    def client_disconnected(self, side: Side, fd: int) -> None: ...

    def connection_refused(self, side: Side, reason: Refusal) -> None: ...

    def client_too_slow(self, session: Session) -> None:
        self.slow.append(session)


@contextmanager
def serving(
    listener: Listener, transport: TransportConfig = LOOPBACK
) -> Iterator[tuple["zmq.Context[zmq.Socket[bytes]]", ExposedSockets]]:
    """Open the exposed sockets of a server, and close them whatever happens."""
    with zmq.Context() as context:
        exposed = ExposedSockets(context, transport, 1 << 20, listener)
        try:
            yield context, exposed
        finally:
            exposed.close(0)


async def test_whoever_takes_the_name_gets_nothing() -> None:
    name = os.urandom(16)
    listener = Listener()
    with serving(listener) as (context, exposed):
        session = Session(name, b"", "victim", 1, 1, ANYBODY)
        session.fds = {Side.INPUT: 3, Side.OUTPUT: None}
        session.held = True
        with context.socket(zmq.DEALER) as newcomer:
            newcomer.linger = 0
            newcomer.set(zmq.ROUTING_ID, name)
            newcomer.connect(f"tcp://127.0.0.1:{exposed.output_port}")
            newcomer.send(b"here")
            await eventually_async(lambda: listener.heard == [name])
            exposed.relay(session, b"secret", [])
            exposed.send(session, [b"\x83", b"secret too"], engine_message=False)
            exposed.flush(session)
            assert not newcomer.poll(100)
            assert session.backlog_bytes == len(b"secret" + b"\x83" + b"secret too")
            session.held = False
            exposed.flush(session)
            assert newcomer.poll(5000)
            assert newcomer.recv() == b"secret"
            assert newcomer.recv_multipart() == [b"\x83", b"secret too"]


@pytest.mark.parametrize("queued", [False, True])
async def test_a_connection_that_is_not_there_is_over(queued: bool) -> None:
    """Even if its descriptor is in use: it is another one's then, and nobody tells of its end."""
    with serving(Listener()) as (_, exposed):
        session = Session(os.urandom(16), b"", "gone", 1, 1, ANYBODY)
        session.fds = {Side.INPUT: 3, Side.OUTPUT: 4}
        if queued:
            session.backlog.append([b"waits"])
            exposed.flush(session)
        else:
            exposed.relay(session, b"waits", [])
        assert session.fds == {Side.INPUT: 3, Side.OUTPUT: None}
        assert session.held
        assert session.broken_at is not None
        assert list(session.backlog) == [[b"waits"]]


async def test_what_is_sent_again_makes_no_client_too_slow() -> None:
    name = os.urandom(16)
    listener = Listener()
    transport = msgspec.structs.replace(LOOPBACK, backlog_bytes=1000)
    with serving(listener, transport) as (context, exposed):
        session = Session(name, b"", "back", 1, 1, ANYBODY)
        session.fds = {Side.INPUT: None, Side.OUTPUT: 4}
        session.sent.add_frames([bytes(2000)])
        session.outputs_sent = 1
        assert exposed.replay(session, 0) == 1
        exposed.send(session, [bytes(1000)], engine_message=False)
        assert listener.slow == []
        exposed.send(session, [b"x"], engine_message=False)
        assert listener.slow == [session]
        with context.socket(zmq.DEALER) as client:
            client.linger = 0
            client.set(zmq.ROUTING_ID, name)
            client.connect(f"tcp://127.0.0.1:{exposed.output_port}")
            client.send(b"here")
            await eventually_async(lambda: listener.heard == [name])
            exposed.flush(session)
            for size in (2000, 1000, 1):
                assert client.poll(5000)
                assert len(client.recv()) == size
        session.held = True
        exposed.send(session, [bytes(1001)], engine_message=False)
        assert listener.slow == [session, session], "that was only once"
