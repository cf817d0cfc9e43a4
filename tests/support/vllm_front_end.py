"""The front end of one stock vLLM engine: its launch, its handshake and its sockets.

This is vLLM's native side (wire: ROUTER and PULL bound here, the engine dials), as the engine
server has it inside a pod; nothing of the server or the client is used.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import zmq

from enginecore_wire.codec import MsgpackDecoder, MsgpackEncoder
from enginecore_wire.handshake import EngineAddresses, EngineInit, engine_identity
from enginecore_wire.outputs import ENGINE_CORE_DEAD, EngineCoreOutputs
from enginecore_wire.requests import RequestType, UtilityCall
from support.vllm_environment import RUN_VARIABLES

START_SECONDS = 300.0
REPLY_SECONDS = 60.0

Note = Callable[[str, list[bytes]], None]


class EngineDiedError(Exception):
    """The engine sent ENGINE_CORE_DEAD."""


class VllmFrontEnd:
    """The sockets of a front end with `clients` client slots.

    Args:
        context: the ZMQ context of the sockets.
        clients: how many output sockets the engine is told of.
        note: called with the channel and the frames of every message, both ways.
    """

    def __init__(self, context: "zmq.Context[Any]", clients: int = 1, note: Note | None = None):
        self._handshake = context.socket(zmq.ROUTER)
        self._input = context.socket(zmq.ROUTER)
        self._outputs = [context.socket(zmq.PULL) for _ in range(clients)]
        self._note = note or _forget
        self._encoder = MsgpackEncoder()
        self._decoder = MsgpackDecoder(EngineCoreOutputs)
        self._calls = 0
        self.port: int = self._handshake.bind_to_random_port("tcp://127.0.0.1")
        for socket in (self._input, *self._outputs):
            socket.bind("tcp://127.0.0.1:*")

    def start(self) -> bytes:
        """Answer the handshake and return the READY payload once the engine is ready on both
        sockets."""
        inputs = [_address(self._input)]
        init = EngineInit(EngineAddresses(inputs, [_address(socket) for socket in self._outputs]))
        payload = b""
        waiting = {self._handshake, self._input}
        while waiting:
            socket = _wait([self._handshake, self._input], START_SECONDS)
            identity, *body = socket.recv_multipart()
            assert identity == engine_identity(0)
            if socket is self._input:
                self._note("input from engine", body)
                payload = body[0]
                waiting.discard(socket)
                continue
            self._note("handshake from engine", body)
            if b"READY" in body[0]:
                waiting.discard(socket)
                continue
            frames = [bytes(frame) for frame in self._encoder.encode(init)]
            self._note("handshake to engine", frames)
            socket.send_multipart([identity, *frames])
        return payload

    def send(self, kind: bytes, message: Any) -> None:
        """Send one message to the engine."""
        frames = [kind, *map(bytes, self._encoder.encode(message))]
        self._note("input to engine", frames)
        self._input.send_multipart([engine_identity(0), *frames])

    def receive(self) -> tuple[int, EngineCoreOutputs | None]:
        """Return the client slot and the engine's next message; None tells of its death.

        Raises:
            TimeoutError: nothing came for REPLY_SECONDS.
        """
        socket = _wait(self._outputs, REPLY_SECONDS)
        slot = self._outputs.index(socket)
        frames = socket.recv_multipart()
        self._note(f"output {slot}", frames)
        if frames == [ENGINE_CORE_DEAD]:
            return slot, None
        return slot, self._decoder.decode(frames[0], frames[1:])

    def until(self, done: Callable[[EngineCoreOutputs], bool]) -> EngineCoreOutputs:
        """Receive messages until one satisfies `done`, and return that one.

        Raises:
            EngineDiedError: the engine died before.
        """
        while True:
            _, message = self.receive()
            if message is None:
                raise EngineDiedError
            if done(message):
                return message

    def finish(self, request_ids: Sequence[str]) -> None:
        """Receive messages until all these requests have ended."""
        left = set(request_ids)

        def ended(message: EngineCoreOutputs) -> bool:
            for output in message.outputs:
                if output.finish_reason is not None:
                    left.discard(output.request_id)
            return not left

        self.until(ended)

    def call(self, method: str, *args: Any) -> Any:
        """Make a utility call in the last client's name and return its result's value, or
        the failure message."""
        self._calls += 1
        call = UtilityCall(len(self._outputs) - 1, self._calls, method, list(args))
        self.send(RequestType.UTILITY, call)
        reply = self.until(lambda message: message.utility_output is not None).utility_output
        assert reply is not None
        return reply.result.value if reply.result else reply.failure_message

    def close(self) -> None:
        """Close every socket."""
        for socket in (self._handshake, self._input, *self._outputs):
            socket.close(linger=0)


def serve(python: Path, model: Path, port: int, *options: str) -> "subprocess.Popen[bytes]":
    """Launch `vllm serve --headless` for the front end whose handshake is at `port`."""
    command = [
        str(python.with_name("vllm")), "serve", str(model), "--headless",
        "--data-parallel-address", "127.0.0.1", "--data-parallel-rpc-port", str(port),
        "--dtype", "bfloat16", "--enforce-eager", *options,
    ]  # fmt: skip
    return subprocess.Popen(command, env=os.environ | RUN_VARIABLES, start_new_session=True)


def stop(process: "subprocess.Popen[bytes]", seconds: float = 20.0) -> None:
    """End the launcher, and whatever of its session outlives it for `seconds`."""
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    end = time.monotonic() + seconds
    while _alive(process.pid):
        if time.monotonic() > end:
            os.killpg(process.pid, signal.SIGKILL)
            return
        time.sleep(0.05)


def _forget(_channel: str, _frames: list[bytes]) -> None:
    """Keep nothing."""


def _alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def _address(socket: "zmq.Socket[bytes]") -> str:
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)


def _wait(sockets: "Sequence[zmq.Socket[bytes]]", seconds: float) -> "zmq.Socket[bytes]":
    poller = zmq.Poller()
    for socket in sockets:
        poller.register(socket, zmq.POLLIN)
    ready = poller.poll(int(seconds * 1000))
    if not ready:
        raise TimeoutError(f"nothing came from the engine for {seconds} s")
    found: zmq.Socket[bytes] = ready[0][0]
    return found
