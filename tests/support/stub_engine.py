"""A fast engine without a model: vLLM's native handshake and messages, made-up tokens.

Runs as a process of its own, as an engine does:

    python tests/support/stub_engine.py --data-parallel-address 127.0.0.1 \\
        --data-parallel-rpc-port 29550 --tokens 8 --payload-bytes 300

Every running request gets one token per step, in one message per client, as vLLM sends it;
token i of a request is `prompt[i % len(prompt)]`, so a caller can check what it receives.
What would break vLLM breaks this engine in the same way: an unreadable message or an unknown
type makes it deaf, a client index past the outputs makes it mute, a token id past the
vocabulary, a prompt past the context or a second ADD of a running id kills it. One thread does
everything, which is fastest; with --threads input, loop and output have one each, joined by
queues, as in vLLM.

The utility call `collective_rpc(method)` steers it while it runs:

    journal    return [[type, what]…] of all messages so far: add, abort, utility
    die        exit at once, as after SIGKILL: nothing on the wire
    dead       send ENGINE_CORE_DEAD to every output and exit 1
    hang       take messages no more and compute no more (the process lives)
    mute       compute on, send nothing more
    stats      start to attach scheduler stats whatever --stats says
"""

import argparse
import json
import os
import queue
import signal
import sys
import threading
import time
import zlib
from collections.abc import Sequence
from typing import Any

import msgspec
import zmq
from stub_launcher import launch
from stub_options import parse

from enginecore_wire.codec import MsgpackDecoder, MsgpackEncoder
from enginecore_wire.handshake import (
    HELLO,
    READY,
    EngineInit,
    EngineStatus,
    ReadyPayload,
    engine_identity,
)
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


class Running(msgspec.Struct):
    """One unfinished request: `position` tokens of `total` were sent."""

    request: EngineCoreRequest
    total: int
    position: int = 0


class EngineDiedError(Exception):
    """The loop hit what would be fatal in a real engine."""


class StubEngine:
    """The loop, its sockets and its requests."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._context = zmq.Context()
        self._encoder = MsgpackEncoder()
        self._add = MsgpackDecoder(EngineCoreRequest)
        self._utility = MsgpackDecoder(UtilityCall)
        self._ids = MsgpackDecoder(list[str])
        self._running: dict[str, Running] = {}
        self._waiting: dict[str, Running] = {}
        self._journal: list[list[Any]] = []
        self._inputs: list[zmq.Socket[bytes]] = []
        self._outputs: list[zmq.Socket[bytes]] = []
        self._poller = zmq.Poller()
        self._padding = {"padding": "x" * options.payload_bytes} if options.payload_bytes else None
        self._deaf = self._mute = self._stopping = False
        self._stats = options.stats
        self._steps = 0
        self._arrived: queue.SimpleQueue[list[bytes]] = queue.SimpleQueue()
        self._departing: queue.SimpleQueue[tuple[int, EngineCoreOutputs] | None] = (
            queue.SimpleQueue()
        )
        self._threads = [
            threading.Thread(target=target, name=target.__name__)
            for target in (self._pump_input, self._pump_output)
            if options.threads
        ]

    def start(self) -> None:
        """Say HELLO, take the addresses, pretend to load, report READY."""
        options = self._options
        address = options.data_parallel_address
        host = f"[{address}]" if ":" in address else address
        handshake = self._socket(zmq.DEALER)
        handshake.connect(f"tcp://{host}:{options.data_parallel_rpc_port}")
        print("stub: connecting to the handshake", flush=True)
        handshake.send(msgspec.msgpack.encode(self._status(HELLO)))
        init = msgspec.msgpack.decode(handshake.recv(), type=EngineInit)
        print(f"stub: {len(init.addresses.outputs)} outputs", flush=True)
        self._load()
        ready = msgspec.msgpack.encode(self._ready_payload(init))
        for input_address in init.addresses.inputs:
            dealer = self._socket(zmq.DEALER)
            dealer.connect(input_address)
            dealer.send(ready)
            self._inputs.append(dealer)
            self._poller.register(dealer, zmq.POLLIN)
        for output_address in init.addresses.outputs:
            push = self._socket(zmq.PUSH)
            push.connect(output_address)
            self._outputs.append(push)
        handshake.send(msgspec.msgpack.encode(self._status(READY)))
        handshake.close(linger=5000)
        print("stub: ready", flush=True)

    def run(self) -> None:
        """Compute until SIGTERM."""
        signal.signal(signal.SIGTERM, self._on_sigterm)
        for thread in self._threads:
            thread.start()
        next_step = time.monotonic()
        while not self._stopping:
            now = time.monotonic()
            wait = max(0.0, next_step - now) if self._running or self._waiting else 1.0
            self._receive(wait)
            if (self._running or self._waiting) and time.monotonic() >= next_step:
                for _ in range(self._options.steps):
                    self._step()
                next_step = time.monotonic() + self._options.token_seconds
        self._departing.put(None)
        for thread in self._threads:
            thread.join()
        self._context.destroy(linger=2000)

    def die(self) -> None:
        """Tell every client that the loop is dead."""
        for push in self._outputs:
            push.send(ENGINE_CORE_DEAD)
        self._context.destroy(linger=2000)

    def _status(self, status: str) -> EngineStatus:
        return EngineStatus(status, local=self._options.local, headless=not self._options.local)

    def _socket(self, kind: int) -> "zmq.Socket[bytes]":
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.IPV6, 1)
        if kind == zmq.DEALER:
            socket.setsockopt(zmq.RCVHWM, 0)
            socket.setsockopt(zmq.ROUTING_ID, engine_identity(self._options.rank))
        return socket

    def _load(self) -> None:
        options = self._options
        if options.fail == "load":
            print("stub: cannot load the model: out of imagination", file=sys.stderr, flush=True)
            sys.exit(1)
        if options.fail == "stall":
            signal.pause()
        deadline = time.monotonic() + options.load_seconds
        while (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, 0.1))
            if options.load_log:
                print(f"stub: loading, {left:.1f} s to go", flush=True)

    def _ready_payload(self, init: EngineInit) -> ReadyPayload:
        return ReadyPayload(
            max_model_len=self._options.max_model_len,
            num_gpu_blocks=1000,
            block_size=16,
            dp_stats_address=init.addresses.frontend_stats_publish_address,
            dtype="float32",
            vllm_version="0.32.0",
            world_size=1,
            data_parallel_size=1,
            tensor_parallel_size=1,
            pipeline_parallel_size=1,
            decode_context_parallel_size=1,
            data_parallel_rank=self._options.rank,
            max_num_seqs=self._options.max_num_seqs,
            max_num_batched_tokens=2048,
            instance_id="stub",
            supports_lora=False,
            max_loras=0,
        )

    def _receive(self, seconds: float) -> None:
        """Take every message that is there; wait for the first at most `seconds`."""
        if self._deaf:
            time.sleep(min(seconds, 0.01))
            return
        if self._threads:
            self._receive_from_thread(seconds)
            return
        for dealer, _ in self._poller.poll(round(seconds * 1000)):
            while not self._deaf:
                self._take_checked(dealer.recv_multipart())
                if not dealer.getsockopt(zmq.EVENTS) & zmq.POLLIN:
                    break

    def _receive_from_thread(self, seconds: float) -> None:
        try:
            self._take_checked(self._arrived.get(timeout=seconds))
            while True:
                self._take_checked(self._arrived.get_nowait())
        except queue.Empty:
            return

    def _pump_input(self) -> None:
        while not self._stopping:
            for dealer, _ in self._poller.poll(100):
                self._arrived.put(dealer.recv_multipart())

    def _pump_output(self) -> None:
        while (departing := self._departing.get()) is not None:
            client_index, outputs = departing
            self._outputs[client_index].send_multipart(self._encoder.encode(outputs))

    def _take_checked(self, frames: Sequence[bytes]) -> None:
        try:
            self._take(frames)
        except (msgspec.MsgspecError, ValueError, IndexError) as error:
            print(f"stub: input thread died: {error}", file=sys.stderr, flush=True)
            self._deaf = True

    def _take(self, frames: Sequence[bytes]) -> None:
        kind, body, aux = frames[0], frames[1], frames[2:]
        if kind == RequestType.ADD:
            self._on_add(self._add.decode(body, aux))
        elif kind == RequestType.ABORT:
            ids = self._ids.decode(body)
            self._journal.append(["abort", ids])
            for request_id in ids:
                self._running.pop(request_id, None)
                self._waiting.pop(request_id, None)
        elif kind == RequestType.UTILITY:
            self._on_utility(self._utility.decode(body, aux))
        elif kind != RequestType.START_DP_WAVE:
            raise ValueError(f"unknown request type {kind.hex()}")

    def _on_add(self, request: EngineCoreRequest) -> None:
        options = self._options
        request_id, prompt = request.request_id, request.prompt_token_ids
        if prompt is None and request.prompt_embeds is not None and options.enable_prompt_embeds:
            prompt = request.prompt_token_ids = [0] * request.prompt_embeds.shape[0]
        self._journal.append(["add", request_id])
        if request_id in self._running or request_id in self._waiting:
            raise EngineDiedError(f"duplicate request id {request_id}")
        if not prompt or max(prompt) >= options.vocab_size or len(prompt) > options.max_model_len:
            raise EngineDiedError("prompt out of range")
        params = request.sampling_params
        if params is None or params.max_tokens is None:
            self._send(request.client_index, self._error_output(request_id))
            return
        if options.ignore:
            return
        entry = Running(request, min(options.tokens, params.max_tokens))
        target = self._running if len(self._running) < options.max_num_seqs else self._waiting
        target[request_id] = entry

    def _on_utility(self, call: UtilityCall) -> None:
        self._journal.append(["utility", call.method])
        failure, value = None, None
        try:
            value = self._call(call.method, call.args)
        except ValueError as error:
            failure = f"Call to {call.method} method failed: {error}"
        result = None if failure else UtilityResult(None, value)
        reply = UtilityOutput(call.call_id, failure, result)
        self._send(
            call.client_index,
            EngineCoreOutputs(self._options.rank, timestamp=time.monotonic(), utility_output=reply),
        )

    def _call(self, method: str, args: Sequence[Any]) -> Any:
        answers = {
            "get_supported_tasks": ["generate"],
            "is_sleeping": False,
            "is_scheduler_paused": False,
            "list_loras": [],
            "reset_prefix_cache": True,
        }
        if method in answers:
            return answers[method]
        if method != "collective_rpc":
            raise ValueError(f"no method {method}")
        order = args[0]
        if order == "die":
            os._exit(1)
        if order == "dead":
            raise EngineDiedError("told to")
        if order == "hang":
            signal.pause()
        if order == "mute":
            self._mute = True
        if order == "stats":
            self._stats = True
        return [self._journal if order == "journal" else None]

    def _step(self) -> None:
        """One token for every running request, grouped by client."""
        self._steps += 1
        while self._waiting and len(self._running) < self._options.max_num_seqs:
            request_id = next(iter(self._waiting))
            self._running[request_id] = self._waiting.pop(request_id)
        grouped: dict[int, list[EngineCoreOutput]] = {}
        for request_id, entry in list(self._running.items()):
            prompt = entry.request.prompt_token_ids or [0]
            token = prompt[entry.position % len(prompt)]
            entry.position += 1
            reason = None
            if entry.position >= entry.total:
                reason = FinishReason.LENGTH
                del self._running[request_id]
            output = EngineCoreOutput(
                request_id, [token], finish_reason=reason, trace_headers=self._padding
            )
            embeds = entry.request.prompt_embeds
            if embeds is not None and entry.position == 1:
                output.routed_experts = embeds
                output.trace_headers = {"crc32": str(zlib.crc32(embeds.data))}
            grouped.setdefault(entry.request.client_index, []).append(output)
        stats = self._scheduler_stats() if self._stats else None
        now = time.monotonic()
        for client_index, outputs in grouped.items():
            self._send(
                client_index,
                EngineCoreOutputs(
                    self._options.rank, outputs, scheduler_stats=stats, timestamp=now
                ),
            )
            stats = None

    def _scheduler_stats(self) -> SchedulerStats:
        used = len(self._running)
        return SchedulerStats(
            num_running_reqs=used,
            num_waiting_reqs=len(self._waiting),
            step_counter=self._steps,
            kv_cache_usage=min(1.0, used / self._options.max_num_seqs),
        )

    def _error_output(self, request_id: str) -> EngineCoreOutputs:
        output = EngineCoreOutput(request_id, [], finish_reason=FinishReason.ERROR)
        return EngineCoreOutputs(self._options.rank, [output], timestamp=time.monotonic())

    def _send(self, client_index: int, outputs: EngineCoreOutputs) -> None:
        if not 0 <= client_index < len(self._outputs):
            print(f"stub: output thread died: client {client_index}", file=sys.stderr, flush=True)
            self._mute = True
        if self._mute:
            return
        if self._threads:
            self._departing.put((client_index, outputs))
        else:
            self._outputs[client_index].send_multipart(self._encoder.encode(outputs))

    def _on_sigterm(self, _signal: int, _frame: Any) -> None:
        self._stopping = True


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    if options.launcher:
        rest = [item for item in arguments if item != "--launcher"]
        return launch([sys.executable, __file__, *rest])
    if options.print_environment:
        print("stub:", json.dumps(os.environ.get(options.print_environment)), flush=True)
    if options.fail == "start":
        print("stub: refusing to start", file=sys.stderr, flush=True)
        return 1
    engine = StubEngine(options)
    engine.start()
    try:
        engine.run()
    except EngineDiedError as error:
        print(f"stub: fatal: {error}", file=sys.stderr, flush=True)
        engine.die()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
