"""The server's half of vLLM's start-up handshake with its one engine. No sockets."""

from enum import Enum

import msgspec

from enginecore_wire.handshake import (
    HELLO,
    READY,
    EngineAddresses,
    EngineInit,
    EngineStatus,
    engine_rank,
)


class HandshakeStep(Enum):
    """How far the engine has come."""

    WAITING = "waiting"
    INITIALIZED = "initialized"
    READY = "ready"


class HandshakeError(ValueError):
    """The engine said something that does not fit its state; the text says what."""


class Handshake:
    """Answers one engine: HELLO gets INIT, READY ends it.

    The engine keeps the identity (rank) it comes with: in a pod it runs alone, whatever rank
    its EngineCore has outside. A HELLO before READY may repeat, an engine that restarts
    after READY is another engine and refused.
    """

    def __init__(self, addresses: EngineAddresses) -> None:
        self._init = msgspec.msgpack.encode(EngineInit(addresses))
        self.step = HandshakeStep.WAITING
        self.identity: bytes | None = None

    def receive(self, identity: bytes, body: bytes) -> bytes | None:
        """Return the answer to a message on the handshake socket, or None.

        Raises:
            HandshakeError: the message is not the next one of this engine.
        """
        try:
            status = msgspec.msgpack.decode(body, type=EngineStatus).status
        except (msgspec.DecodeError, RecursionError) as error:
            raise HandshakeError(f"unreadable handshake message: {error}") from error
        if engine_rank(identity) is None:
            raise HandshakeError(f"identity {identity.hex()} is not a rank in 2 bytes")
        if self.identity not in (None, identity):
            raise HandshakeError(
                f"a second engine (identity {identity.hex()}) dialled in; one pod serves one "
                "engine, so run it with data parallel size 1"
            )
        if status == HELLO and self.step is not HandshakeStep.READY:
            self.identity = identity
            self.step = HandshakeStep.INITIALIZED
            return self._init
        if status == READY and self.step is HandshakeStep.INITIALIZED:
            self.step = HandshakeStep.READY
            return None
        raise HandshakeError(f"status {status} while the handshake is {self.step.value}")
