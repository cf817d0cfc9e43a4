"""The pod's side of docs/protocol.md in one thread, scripted by a test.

It answers HELLO, PING and UTILITY, and streams every ADD as the stub engine does: token i is
`prompt[i % len(prompt)]`. Whatever a test wants otherwise it switches off or sends itself; it
is the peer for what a real engine server would never do.
"""

import threading
from collections.abc import Sequence
from typing import Any

import msgspec
import zmq

from enginecore_wire.codec import MsgpackDecoder, MsgpackEncoder
from enginecore_wire.control import (
    Bye,
    ControlMessage,
    Hello,
    Limits,
    PhaseChange,
    Ping,
    Pong,
    Ready,
    Timers,
)
from enginecore_wire.frames import decode_control, encode_control
from enginecore_wire.outputs import (
    ENGINE_CORE_DEAD,
    EngineCoreOutput,
    EngineCoreOutputs,
    FinishReason,
    SchedulerStats,
    UtilityOutput,
    UtilityResult,
)
from enginecore_wire.requests import EngineCoreRequest, RequestType, UtilityCall

TURN_SECONDS = 0.001


class Session:
    """One client as the peer sees it."""

    def __init__(self, routing_id: bytes, slot: int) -> None:
        self.routing_id = routing_id
        self.slot = slot
        self.hello: Hello | None = None
        self.channels: set[str] = set()
        self.outputs_sent = 0
        self.running: dict[str, list[Any]] = {}


class ProtocolPeer:
    """A pod that does what the protocol says until told otherwise.

    Attributes:
        ready: READY's content; `phase` is what is said while it is None.
        streaming: whether ADDs are answered with tokens.
        answering: whether anything is answered at all.
        results: values of utility calls by method; an exception is a failure.
        adds, aborts, calls, hellos, pings, byes: what came.
    """

    def __init__(self, rank: int = 0, epoch: int = 1, ports: tuple[int, int] = (0, 0)) -> None:
        self.ready: Ready | None = Ready(
            name=f"peer-{rank}",
            rank=rank,
            epoch=epoch,
            engine={"max_model_len": 4096},
            vocab_size=1000,
            model_name="peer",
            limits=Limits(),
            timers=Timers(),
        )
        self.phase = PhaseChange("Loading", "weights", 1.0)
        self.streaming = True
        self.answering = True
        self.results: dict[str, Any] = {}
        self.adds: list[EngineCoreRequest] = []
        self.aborts: list[str] = []
        self.calls: list[UtilityCall] = []
        self.hellos: list[Hello] = []
        self.pings: list[int] = []
        self.byes = 0
        self.sessions: dict[bytes, Session] = {}
        self.lock = threading.RLock()
        self._encoder = MsgpackEncoder()
        self._requests = MsgpackDecoder(EngineCoreRequest)
        self._context: zmq.Context[Any] = zmq.Context()
        self._input, self.input_address = self._bind(ports[0])
        self._output, self.output_address = self._bind(ports[1])
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="protocol-peer", daemon=True)
        self._thread.start()

    @property
    def addresses(self) -> dict[str, Any]:
        """Return `client_addresses` of this peer alone."""
        return {"input_address": self.input_address, "output_address": self.output_address}

    @property
    def ports(self) -> tuple[int, int]:
        """Return the two ports, for a replacement on the same address."""
        return (
            int(self.input_address.rpartition(":")[2]),
            int(self.output_address.rpartition(":")[2]),
        )

    def session(self) -> Session:
        """Return the only session that said HELLO."""
        (session,) = [s for s in self.sessions.values() if s.hello]
        return session

    def control(self, message: ControlMessage) -> None:
        """Send a control message to every session."""
        with self.lock:
            for session in self.sessions.values():
                self._send(session, encode_control(message))

    def outputs(self, message: EngineCoreOutputs, counted: bool = True) -> None:
        """Send an engine message to every session; not counted: as if one had got lost."""
        with self.lock:
            for session in self.sessions.values():
                session.outputs_sent += counted
                self._send(session, self._encoder.encode(message))

    def raw(self, frames: Sequence[bytes]) -> None:
        """Send any frames to every session and count them as an engine message."""
        with self.lock:
            for session in self.sessions.values():
                session.outputs_sent += 1
                self._send(session, list(frames))

    def lose_one(self) -> None:
        """Count an output that never leaves, as when a connection broke."""
        with self.lock:
            for session in self.sessions.values():
                session.outputs_sent += 1

    def stats(self, running: int, waiting: int, kv_usage: float = 0.0) -> None:
        """Send an engine message that holds scheduler stats only."""
        stats = SchedulerStats(
            num_running_reqs=running, num_waiting_reqs=waiting, kv_cache_usage=kv_usage
        )
        self.outputs(EngineCoreOutputs(scheduler_stats=stats))

    def become_ready(self, ready: Ready) -> None:
        """Have the engine ready from now on and say so."""
        with self.lock:
            self.ready = ready
            for session in self.sessions.values():
                self._greet(session)

    def die(self) -> None:
        """Say ENGINE_CORE_DEAD to every session."""
        with self.lock:
            for session in self.sessions.values():
                self._send(session, [ENGINE_CORE_DEAD])

    def close(self, linger: int = 500) -> None:
        """End; with `linger` 0 as a process that was killed."""
        if self._stop.is_set():
            return
        self._stop.set()
        self._thread.join()
        self._input.close(0)
        self._output.close(linger)
        self._context.term()

    def __enter__(self) -> "ProtocolPeer":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _bind(self, port: int) -> tuple[zmq.Socket[bytes], str]:
        socket: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.bind(f"tcp://127.0.0.1:{port or '*'}")
        return socket, socket.getsockopt(zmq.LAST_ENDPOINT).decode().rstrip("\0")

    def _run(self) -> None:
        while not self._stop.wait(TURN_SECONDS):
            with self.lock:
                for socket, channel in ((self._input, "input"), (self._output, "output")):
                    while socket.getsockopt(zmq.EVENTS) & zmq.POLLIN:
                        routing_id, *frames = socket.recv_multipart(zmq.NOBLOCK)
                        self._take(routing_id, channel, frames)
                if self.streaming and self.answering:
                    for session in self.sessions.values():
                        self._step(session)

    def _take(self, routing_id: bytes, channel: str, frames: list[bytes]) -> None:
        session = self.sessions.setdefault(routing_id, Session(routing_id, len(self.sessions)))
        kind, body, *aux = frames
        if kind == RequestType.ADD:
            request = self._requests.decode(body, aux)
            self.adds.append(request)
            session.running[request.request_id] = [request, 0]
        elif kind == RequestType.ABORT:
            for name in msgspec.msgpack.decode(body, type=list[str]):
                self.aborts.append(name)
                session.running.pop(name, None)
        elif kind == RequestType.UTILITY:
            self._call(session, msgspec.msgpack.decode(body, type=UtilityCall))
        else:
            self._control(session, channel, decode_control(frames))

    def _control(self, session: Session, channel: str, message: ControlMessage | None) -> None:
        match message:
            case Hello():
                self.hellos.append(message)
                session.hello = message
                session.channels.add(channel)
                self._greet(session)
            case Ping(sequence):
                self.pings.append(sequence)
                if not (session.hello and self.answering and self.ready):
                    return
                pong = Pong(
                    sequence=sequence,
                    nonce=session.hello.nonce,
                    epoch=self.ready.epoch,
                    outputs_sent=session.outputs_sent,
                )
                self._send(session, encode_control(pong))
            case Bye():
                self.byes += 1
                self.sessions.pop(session.routing_id)

    def _greet(self, session: Session) -> None:
        if len(session.channels) < 2 or not self.answering or session.hello is None:
            return
        if self.ready is None:
            self._send(session, encode_control(self.phase))
            return
        ready = msgspec.structs.replace(
            self.ready,
            nonce=session.hello.nonce,
            slot=session.slot,
            outputs_sent=session.outputs_sent,
            requests=sorted(session.running),
        )
        self._send(session, encode_control(ready))

    def _call(self, session: Session, call: UtilityCall) -> None:
        self.calls.append(call)
        if not self.answering:
            return
        result = self.results.get(call.method)
        if isinstance(result, Exception):
            reply = UtilityOutput(call.call_id, f"Call to {call.method} method failed: {result}")
        else:
            reply = UtilityOutput(call.call_id, None, UtilityResult(None, result))
        session.outputs_sent += 1
        self._send(session, self._encoder.encode(EngineCoreOutputs(utility_output=reply)))

    def _step(self, session: Session) -> None:
        outputs = []
        for name, state in list(session.running.items()):
            request, count = state
            prompt = request.prompt_token_ids
            last = count + 1 >= request.sampling_params.max_tokens
            reason = FinishReason.LENGTH if last else None
            outputs.append(
                EngineCoreOutput(name, [prompt[count % len(prompt)]], finish_reason=reason)
            )
            state[1] += 1
            if last:
                del session.running[name]
        if outputs:
            session.outputs_sent += 1
            self._send(session, self._encoder.encode(EngineCoreOutputs(outputs=outputs)))

    def _send(self, session: Session, frames: Sequence[Any]) -> None:
        self._output.send_multipart([session.routing_id, *frames], zmq.NOBLOCK)
