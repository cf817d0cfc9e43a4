"""Outputs for a session whose connection broke wait until its client has shown its key again."""

import os

import zmq

from enginecore_server.exposed import ExposedSockets
from enginecore_server.monitors import Refusal
from enginecore_server.sessions import ANYBODY, Session, Side
from support.eventually import eventually_async
from support.pod import LOOPBACK


class Listener:
    """Takes note of who is connected."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []

    def client_message(self, _side: Side, identity: bytes, _frames: list[zmq.Frame]) -> None:
        self.heard.append(identity)

    def client_disconnected(self, side: Side, fd: int) -> None: ...

    def connection_refused(self, side: Side, reason: Refusal) -> None: ...

    def client_too_slow(self, session: Session) -> None: ...


async def test_whoever_takes_the_name_gets_nothing() -> None:
    name = os.urandom(16)
    listener = Listener()
    with zmq.Context() as context:
        exposed = ExposedSockets(context, LOOPBACK, 1 << 20, listener)
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
        exposed.close(0)
