"""The front end's side of vLLM's native protocol, as small as it can be: pyzmq and the wire.

It binds the handshake, one input and any number of outputs on loopback, answers HELLO, and
then sends requests and reads outputs. Everything has a deadline; nothing runs by itself.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self

import msgspec
import zmq

from enginecore_wire.codec import MsgpackDecoder, MsgpackEncoder
from enginecore_wire.handshake import (
    EngineAddresses,
    EngineInit,
    EngineStatus,
    ReadyPayload,
    engine_identity,
)
from enginecore_wire.outputs import ENGINE_CORE_DEAD, EngineCoreOutputs, UtilityOutput
from enginecore_wire.requests import EngineCoreRequest, RequestType, UtilityCall


class EngineDeadError(Exception):
    """The engine sent ENGINE_CORE_DEAD."""


class NativeFrontEnd:
    """Sockets of one front end process with `num_outputs` clients and one input.

    With `coordinator` it also plays the coordinator's two sockets.
    """

    def __init__(self, *, num_outputs: int = 1, rank: int = 0, coordinator: bool = False) -> None:
        self._context = zmq.Context()
        self._directory = TemporaryDirectory(prefix="front-end-")
        self._identity = engine_identity(rank)
        self._sockets: list[zmq.Socket[bytes]] = []
        self._handshake = self._bind(zmq.ROUTER, "tcp://127.0.0.1:0")
        self._input = self._bind(zmq.ROUTER, self._ipc("input"))
        self._input.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.outputs = [
            self._bind(zmq.PULL, self._ipc(f"output-{index}")) for index in range(num_outputs)
        ]
        self._publish = self._bind(zmq.XPUB, self._ipc("publish")) if coordinator else None
        self.reports = self._bind(zmq.PULL, self._ipc("reports")) if coordinator else None
        self._encoder = MsgpackEncoder()
        self._decoder = MsgpackDecoder(EngineCoreOutputs)
        self._call_ids = 0
        self.status: list[EngineStatus] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._context.destroy(linger=0)
        self._directory.cleanup()

    @property
    def port(self) -> int:
        """Where the handshake is answered on 127.0.0.1."""
        return int(_endpoint(self._handshake).rpartition(":")[2])

    def accept(self, timeout: float = 60.0) -> ReadyPayload:
        """Answer one engine's handshake; return its READY payload once it is ready."""
        deadline = time.monotonic() + timeout
        self.answer_hello(deadline)
        if self._publish is not None:
            assert _receive(self._publish, deadline) == [b"\x01"]
            self._publish.send(b"READY")
        payload = _receive(self._input, deadline)
        identity, body = _receive(self._handshake, deadline)
        self.status.append(msgspec.msgpack.decode(body, type=EngineStatus))
        assert identity == payload[0] == self._identity
        assert self.status[-1].status == "READY"
        return msgspec.msgpack.decode(payload[1], type=ReadyPayload)

    def answer_hello(self, deadline: float) -> None:
        """Wait for HELLO and send INIT."""
        identity, body = _receive(self._handshake, deadline)
        self.status.append(msgspec.msgpack.decode(body, type=EngineStatus))
        assert identity == self._identity
        assert self.status[-1].status == "HELLO"
        addresses = EngineAddresses(
            inputs=[_endpoint(self._input)],
            outputs=[_endpoint(output) for output in self.outputs],
            coordinator_input=_endpoint(self._publish) if self._publish else None,
            coordinator_output=_endpoint(self.reports) if self.reports else None,
        )
        self._handshake.send_multipart([identity, msgspec.msgpack.encode(EngineInit(addresses))])

    def add(self, *requests: EngineCoreRequest) -> None:
        """Send requests."""
        for request in requests:
            self.send(RequestType.ADD, *self._encoder.encode(request))

    def abort(self, *request_ids: str) -> None:
        """Abort requests."""
        self.send(RequestType.ABORT, msgspec.msgpack.encode(request_ids))

    def call(self, method: str, *args: Any, client: int = 0, timeout: float = 30.0) -> Any:
        """Make a utility call; return its value, or raise RuntimeError with its failure."""
        call_id = self.begin_call(method, *args, client=client)
        reply = self.reply_to(call_id, client=client, timeout=timeout)
        if reply.failure_message is not None:
            raise RuntimeError(reply.failure_message)
        assert reply.result is not None
        return reply.result.value

    def begin_call(self, method: str, *args: Any, client: int = 0) -> int:
        """Send a utility call; return its id."""
        self._call_ids += 1
        call = UtilityCall(client, self._call_ids, method, list(args))
        self.send(RequestType.UTILITY, *self._encoder.encode(call))
        return self._call_ids

    def reply_to(self, call_id: int, *, client: int = 0, timeout: float = 30.0) -> UtilityOutput:
        """Wait for the reply to a call; other messages meanwhile are dropped."""
        deadline = time.monotonic() + timeout
        while True:
            message = self.receive(client, max(0.0, deadline - time.monotonic()))
            if message.utility_output is not None and message.utility_output.call_id == call_id:
                return message.utility_output

    def send(self, *frames: bytes | memoryview) -> None:
        """Send raw frames, the type byte first."""
        self._input.send_multipart([self._identity, *frames])

    def receive(self, client: int = 0, timeout: float = 30.0) -> EngineCoreOutputs:
        """Return the next message for `client`.

        Raises:
            EngineDeadError: it was ENGINE_CORE_DEAD.
            TimeoutError: none came in time.
        """
        body, *aux = _receive(self.outputs[client], time.monotonic() + timeout)
        if body == ENGINE_CORE_DEAD:
            raise EngineDeadError
        return self._decoder.decode(body, aux)

    def finish(
        self, request_ids: Sequence[str], *, client: int = 0, timeout: float = 60.0
    ) -> dict[str, list[int]]:
        """Read until all of `request_ids` have ended; return their tokens."""
        deadline = time.monotonic() + timeout
        tokens: dict[str, list[int]] = {name: [] for name in request_ids}
        left = set(request_ids)
        while left:
            for output in self.receive(client, max(0.0, deadline - time.monotonic())).outputs:
                if output.request_id in tokens:
                    tokens[output.request_id] += output.new_token_ids
                    if output.finish_reason is not None:
                        left.discard(output.request_id)
        return tokens

    def _bind(self, kind: int, address: str) -> "zmq.Socket[bytes]":
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.bind(address)
        return socket

    def _ipc(self, name: str) -> str:
        return f"ipc://{Path(self._directory.name) / name}"


def _endpoint(socket: "zmq.Socket[bytes]") -> str:
    address = socket.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(address, bytes)
    return address.rstrip(b"\0").decode()


def _receive(socket: "zmq.Socket[bytes]", deadline: float) -> list[bytes]:
    if not socket.poll(max(0, int((deadline - time.monotonic()) * 1000))):
        raise TimeoutError(f"nothing came on {_endpoint(socket)}")
    return socket.recv_multipart()
