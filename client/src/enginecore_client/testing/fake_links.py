"""The sockets of a fake engine, in vLLM's native protocol: handshake, inputs, outputs,
coordinator."""

import os
import threading
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import zmq

from enginecore_client.testing.fake_core import FakeSettings
from enginecore_client.zmq_sockets import Socket, make_zmq_socket
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

HANDSHAKE_LINGER_MS: Final = 5000
OUTPUT_LINGER_MS: Final = 500
PRETENDED_VERSION: Final = "0.32.0"
"""The release of vLLM whose layout of messages it speaks."""

NOBODY: Final = -1
"""No socket: who waited was woken."""

_SUBSCRIBE: Final = b"\x01"
_COORDINATOR_READY: Final = b"READY"


class FakeLinks:
    """Where a fake engine hears and speaks; of one thread, but for `wake`.

    Args:
        rank: the engine's data-parallel rank.

    Attributes:
        inputs, outputs: a socket for each client.
        coordinated: whether anybody counts on load reports and lists of finished requests.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.inputs: list[Socket] = []
        self.outputs: list[Socket] = []
        self.coordinated = False
        self.poller = zmq.Poller()
        self._context: zmq.Context[Any] = zmq.Context()
        self._identity = engine_identity(rank)
        self._handshake: Socket | None = None
        self._coordinator: Socket | None = None
        self._reports: Socket | None = None
        self._encoder = MsgpackEncoder()
        self._pipe = threading.RLock()
        self._woken, self._waker = os.pipe()
        os.set_blocking(self._woken, False)
        self.poller.register(self._woken, zmq.POLLIN)

    def wake(self) -> None:
        """End a wait, now or next time; may be called from anywhere, also too late."""
        with self._pipe:
            if self._waker >= 0:
                os.write(self._waker, b"w")

    def say_hello(self, address: str, *, local: bool) -> EngineAddresses | None:
        """Dial whoever launches engines; return what it answers, None if woken before.

        Args:
            address: of the handshake.
            local: whether the engine was launched on the launcher's machine.
        """
        self._local = local
        self._handshake = self._dial(address, zmq.DEALER)
        self._send_status(HELLO)
        while True:
            for source, frames in self.receive(None):
                if source == NOBODY:
                    return None
                return msgspec.msgpack.decode(frames[0], type=EngineInit).addresses

    def open(self, addresses: EngineAddresses, settings: FakeSettings) -> bool:
        """Dial everybody and say READY; False if woken before the coordinator let it."""
        if addresses.coordinator_input is not None and not self._subscribe(
            addresses.coordinator_input
        ):
            return False
        if addresses.coordinator_output is not None:
            self._reports = self._dial(addresses.coordinator_output, zmq.PUSH)
            self.coordinated = True
        ready = msgspec.msgpack.encode(self._payload(addresses, settings))
        for address in addresses.inputs:
            self.inputs.append(self._dial(address, zmq.DEALER))
            self.inputs[-1].send(ready)
        self.outputs += [self._dial(address, zmq.PUSH) for address in addresses.outputs]
        if self._handshake is not None:
            self._send_status(READY)
            self.poller.unregister(self._handshake)
            self._handshake.close(HANDSHAKE_LINGER_MS)
            self._handshake = None
        return True

    def receive(self, seconds: float | None) -> Iterator[tuple[Any, list[bytes]]]:
        """Wait at most `seconds` for messages; yield each socket's, or NOBODY when woken.

        What the coordinator says is dropped: it concerns engines that run in lockstep.
        """
        timeout = None if seconds is None else round(seconds * 1000)
        for source, _ in self.poller.poll(timeout):
            if source == self._woken:
                self._rest()
                yield NOBODY, []
                continue
            while True:
                frames = source.recv_multipart()
                if source is not self._coordinator:
                    yield source, frames
                if not source.getsockopt(zmq.EVENTS) & zmq.POLLIN:
                    break

    def send(self, client: int, outputs: EngineCoreOutputs) -> None:
        """Send a client its outputs.

        Raises:
            LookupError: there is no such client.
        """
        if client < 0:
            raise LookupError(f"client {client}")
        self.outputs[client].send_multipart(self._encoder.encode(outputs))

    def report(self, outputs: EngineCoreOutputs) -> None:
        """Tell the coordinator, which there must be."""
        assert self._reports is not None
        self._reports.send_multipart(self._encoder.encode(outputs))

    def say_dead(self) -> None:
        """Tell every client that the engine's loop is dead."""
        for output in self.outputs:
            output.send(ENGINE_CORE_DEAD)

    def close(self, linger: int = OUTPUT_LINGER_MS) -> None:
        """Close everything.

        Args:
            linger: milliseconds for what was sent to leave; 0 as when a process is killed.
        """
        self._context.destroy(linger)
        with self._pipe:
            waker, self._waker = self._waker, -1
        os.close(waker)
        os.close(self._woken)

    def _dial(self, address: str, kind: int) -> Socket:
        identity = None if kind == zmq.PUSH else self._identity
        socket = make_zmq_socket(self._context, address, kind, bind=False, identity=identity)
        if kind != zmq.PUSH:
            self.poller.register(socket, zmq.POLLIN)
        return socket

    def _subscribe(self, address: str) -> bool:
        """Wait until the coordinator has heard of every engine."""
        subscriber = self._dial(address, zmq.XSUB)
        subscriber.send(_SUBSCRIBE)
        while True:
            for source, frames in self.receive(None):
                if source == NOBODY:
                    return False
                if frames[0] == _COORDINATOR_READY:
                    self._coordinator = subscriber
                    return True

    def _send_status(self, status: str) -> None:
        assert self._handshake is not None
        message = EngineStatus(status, local=self._local, headless=not self._local)
        self._handshake.send(msgspec.msgpack.encode(message))

    def _rest(self) -> None:
        try:
            while os.read(self._woken, 1024):
                pass
        except BlockingIOError:
            pass

    def _payload(self, addresses: EngineAddresses, settings: FakeSettings) -> ReadyPayload:
        return ReadyPayload(
            max_model_len=settings.max_model_len,
            num_gpu_blocks=1000,
            block_size=16,
            dp_stats_address=addresses.frontend_stats_publish_address,
            dtype="float32",
            vllm_version=PRETENDED_VERSION,
            world_size=1,
            data_parallel_size=1,
            tensor_parallel_size=1,
            pipeline_parallel_size=1,
            decode_context_parallel_size=1,
            data_parallel_rank=self.rank,
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=2048,
            instance_id="fake",
            supports_lora=False,
            max_loras=0,
        )
