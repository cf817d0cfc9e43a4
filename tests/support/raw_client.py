"""A client of the exposed protocol with nothing between it and the sockets (docs/protocol.md).

For tests that look at single frames, and for the bench. Blocking; one thread.
"""

import os
import socket as sockets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
import zmq

from enginecore_curve.keys import KeyPair, connect_curve
from enginecore_wire.codec import MsgpackDecoder, MsgpackEncoder
from enginecore_wire.control import ControlMessage, Hello, Ping, Ready
from enginecore_wire.frames import control_type, decode_control, encode_control
from enginecore_wire.outputs import ENGINE_CORE_DEAD, EngineCoreOutputs
from enginecore_wire.requests import EngineCoreRequest, RequestType, SamplingParams, UtilityCall

WAIT_SECONDS: Final = 10.0

Message = ControlMessage | EngineCoreOutputs | bytes | None


def request(request_id: str, **fields: Any) -> EngineCoreRequest:
    """Return a small request that every check lets through."""
    params = SamplingParams(max_tokens=fields.pop("max_tokens", 8))
    return EngineCoreRequest(
        request_id=request_id,
        prompt_token_ids=fields.pop("prompt_token_ids", [1, 2, 3]),
        sampling_params=fields.pop("sampling_params", params),
        **fields,
    )


class RawClient:
    """One DEALER pair. Use as a context manager.

    Args:
        input_port, output_port: the pod's ports on 127.0.0.1.
        hello: say HELLO on both sockets at once.
        keys: its own and the pod's public one, for pods with CURVE.
    """

    def __init__(
        self,
        input_port: int,
        output_port: int,
        *,
        hello: bool = True,
        name: str = "raw",
        identity: bytes | None = None,
        nonce: bytes | None = None,
        receive_hwm: int = 0,
        keys: tuple[KeyPair, str] | None = None,
    ) -> None:
        self._keys = keys
        self.identity = identity or os.urandom(16)
        self.nonce = nonce or os.urandom(8)
        self.name = name
        self.outputs_received = 0
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.input = self._socket(input_port, immediate=1, receive_hwm=receive_hwm)
        self.output = self._socket(output_port, immediate=0, receive_hwm=receive_hwm)
        self._encoder = MsgpackEncoder()
        self._outputs = MsgpackDecoder(EngineCoreOutputs)
        if hello:
            self.hello()

    def __enter__(self) -> "RawClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._context.destroy(linger=0)

    def hello(self, **fields: Any) -> None:
        for socket in (self.input, self.output):
            self.hello_on(socket, **fields)

    def hello_on(self, socket: "zmq.Socket[bytes]", **fields: Any) -> None:
        message = Hello(**({"nonce": self.nonce, "name": self.name} | fields))
        self.send_on(socket, encode_control(message))

    def send_on(self, socket: "zmq.Socket[bytes]", frames: Sequence[Any]) -> None:
        """Send as soon as the connection stands."""
        assert socket.poll(round(WAIT_SECONDS * 1000), zmq.POLLOUT), "not connected"
        socket.send_multipart(frames)

    def send(self, *frames: Any) -> None:
        """Send raw frames to the pod's input."""
        self.send_on(self.input, frames)

    def add(self, message: EngineCoreRequest) -> None:
        self.send(RequestType.ADD, *self._encoder.encode(message))

    def abort(self, *request_ids: str) -> None:
        self.send(RequestType.ABORT, msgspec.msgpack.encode(request_ids))

    def call(self, call_id: int, method: str, *args: Any, slot: int = 0) -> None:
        call = UtilityCall(slot, call_id, method, list(args))
        self.send(RequestType.UTILITY, msgspec.msgpack.encode(call))

    def ping(self, sequence: int) -> None:
        self.send(*encode_control(Ping(sequence)))

    def receive(self, seconds: float = WAIT_SECONDS) -> Message:
        """Return the next message: a control message, EngineCoreOutputs, or the frame
        ENGINE_CORE_DEAD; None when none comes in time."""
        if not self.output.poll(max(0, round(seconds * 1000))):
            return None
        frames = self.output.recv_multipart()
        if control_type(frames[0]) is not None:
            return decode_control(frames)
        if frames == [ENGINE_CORE_DEAD]:
            return ENGINE_CORE_DEAD
        self.outputs_received += 1
        return self._outputs.decode(frames[0], frames[1:])

    def until(self, wanted: Callable[[Any], bool], seconds: float = WAIT_SECONDS) -> Any:
        """Return the first message for which `wanted` holds; earlier ones are dropped."""
        deadline = time.monotonic() + seconds
        seen = []
        while (left := deadline - time.monotonic()) > 0:
            message = self.receive(left)
            if message is not None and wanted(message):
                return message
            seen.append(message)
        raise AssertionError(f"nothing like it in {seconds} s; came: {seen}")

    def expect(self, kind: type[Any], seconds: float = WAIT_SECONDS) -> Any:
        """Return the first message of a type."""
        return self.until(lambda message: isinstance(message, kind), seconds)

    def ready(self, seconds: float = WAIT_SECONDS) -> Ready:
        message: Ready = self.expect(Ready, seconds)
        return message

    def tokens(self, request_id: str, seconds: float = WAIT_SECONDS) -> tuple[list[int], int]:
        """Return all tokens of a request and its finish reason; other messages are dropped."""
        tokens: list[int] = []
        while True:
            message = self.expect(EngineCoreOutputs, seconds)
            for output in message.outputs:
                if output.request_id == request_id:
                    tokens += output.new_token_ids
                    if output.finish_reason is not None:
                        return tokens, output.finish_reason

    def answer(self, call_id: int, seconds: float = WAIT_SECONDS) -> Any:
        """Return the value of a utility call's reply."""
        message = self.until(
            lambda item: (
                isinstance(item, EngineCoreOutputs)
                and item.utility_output is not None
                and item.utility_output.call_id == call_id
            ),
            seconds,
        )
        assert message.utility_output.failure_message is None
        return message.utility_output.result.value

    def journal(self, call_id: int) -> list[list[Any]]:
        """Return what the stub engine has received so far."""
        self.call(call_id, "collective_rpc", "journal")
        journal: list[list[Any]] = self.answer(call_id)[0]
        return journal

    def cut(self, port: int) -> None:
        """Break the TCP connections of this process to `port`, as a network would.

        ZMQ knows of it at the end: until then it would send into the broken connection.
        """
        (socket,) = (
            each
            for each in (self.input, self.output)
            if each.getsockopt_string(zmq.LAST_ENDPOINT).endswith(f":{port}")
        )
        monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                    continue
                with sockets.socket(fileno=os.dup(int(name))) as peer:
                    if peer.family == sockets.AF_INET and peer.getpeername()[1] == port:
                        peer.shutdown(sockets.SHUT_RDWR)
        assert monitor.poll(round(WAIT_SECONDS * 1000)), "the connection did not break"
        socket.disable_monitor()
        monitor.close()

    def _socket(self, port: int, immediate: int, receive_hwm: int) -> "zmq.Socket[bytes]":
        socket = self._context.socket(zmq.DEALER)
        for option, value in (
            (zmq.ROUTING_ID, self.identity),
            (zmq.IMMEDIATE, immediate),
            (zmq.SNDHWM, 1000),
            (zmq.RCVHWM, receive_hwm),
            (zmq.RECONNECT_IVL, 100),
            (zmq.RECONNECT_IVL_MAX, 1000),
            (zmq.HEARTBEAT_IVL, 1000),
            (zmq.HEARTBEAT_TIMEOUT, 2500),
            (zmq.HEARTBEAT_TTL, 3500),
        ):
            socket.set(option, value)
        if self._keys is not None:
            connect_curve(socket, *self._keys)
        socket.connect(f"tcp://127.0.0.1:{port}")
        return socket
