"""Record what a real vLLM 0.32 engine and vLLM's own encoder put on the wire.

    python tests/golden/record_vllm.py

builds (once) the environment of tests/support/vllm_environment.py, launches `vllm serve MODEL
--headless` there, answers its handshake, sends it the requests below from two client slots and
writes every frame of both directions to tests/golden/vllm-0.32/frames.json. Then
tests/golden/encode_with_vllm.py runs in that environment: its messages go to encoded.json and
its list of fields to fields.json. Frames are base64; times and random ids in them differ from
run to run.
"""

import base64
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import zmq

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from enginecore_wire.codec import MsgpackDecoder, MsgpackEncoder
from enginecore_wire.handshake import EngineAddresses, EngineInit, engine_identity
from enginecore_wire.outputs import ENGINE_CORE_DEAD, EngineCoreOutputs
from enginecore_wire.requests import (
    EngineCoreRequest,
    OutputKind,
    RepetitionDetection,
    RequestType,
    SamplingParams,
    StructuredOutputs,
    UtilityCall,
)
from support.vllm_environment import RUN_VARIABLES, build_environment, build_model

HERE = Path(__file__).resolve().parent
TARGET = HERE / "vllm-0.32"
START_SECONDS = 300
REPLY_SECONDS = 60
CLIENTS = 2
VOCAB_SIZE = 49152
IM_END = 2

_encoder = MsgpackEncoder()
_decoder = MsgpackDecoder(EngineCoreOutputs)


class Recorder:
    """The front end's sockets, and every frame that passed them.

    Args:
        context: the ZMQ context of the sockets.
    """

    def __init__(self, context: zmq.Context[Any]) -> None:
        self.handshake = context.socket(zmq.ROUTER)
        self.input = context.socket(zmq.ROUTER)
        self.outputs = [context.socket(zmq.PULL) for _ in range(CLIENTS)]
        self.port = self.handshake.bind_to_random_port("tcp://127.0.0.1")
        for socket in (self.input, *self.outputs):
            socket.bind("tcp://127.0.0.1:*")
        self.exchanges: list[dict[str, Any]] = []
        self._name = ""

    def begin(self, name: str) -> None:
        """Give the frames that follow a common name."""
        self._name = name

    def note(self, channel: str, frames: list[bytes]) -> None:
        """Keep the frames of one message."""
        text = [base64.b64encode(frame).decode() for frame in frames]
        self.exchanges.append({"name": self._name, "channel": channel, "frames": text})

    def start(self) -> None:
        """Answer the handshake; return when the engine is ready on both sockets."""
        self.begin("start")
        addresses = EngineAddresses(
            inputs=[_address(self.input)], outputs=[_address(socket) for socket in self.outputs]
        )
        waiting = {self.handshake, self.input}
        while waiting:
            socket = _wait([self.handshake, self.input], START_SECONDS)
            identity, *body = socket.recv_multipart()
            assert identity == engine_identity(0)
            if socket is self.input:
                self.note("input from engine", body)
                waiting.discard(self.input)
                continue
            self.note("handshake from engine", body)
            if msgspec.msgpack.decode(body[0])["status"] == "READY":
                waiting.discard(self.handshake)
                continue
            init = _encoder.encode(EngineInit(addresses=addresses))
            self.note("handshake to engine", [bytes(frame) for frame in init])
            self.handshake.send_multipart([identity, *init])

    def send(self, kind: bytes, message: Any) -> None:
        """Send one message to the engine."""
        frames = [kind, *map(bytes, _encoder.encode(message))]
        self.note("input to engine", frames)
        self.input.send_multipart([engine_identity(0), *frames])

    def receive(self) -> tuple[int, list[bytes]]:
        """Return the next message of the engine and the client slot it came to."""
        socket = _wait(self.outputs, REPLY_SECONDS)
        slot = self.outputs.index(socket)
        frames = socket.recv_multipart()
        self.note(f"output {slot}", frames)
        return slot, frames

    def until(self, done: Callable[[EngineCoreOutputs], bool]) -> None:
        """Receive messages until one of them satisfies `done`."""
        while True:
            _, frames = self.receive()
            if done(_decoder.decode(frames[0], frames[1:])):
                return

    def finish(self, *request_ids: str) -> None:
        """Receive messages until all these requests have ended."""
        left = set(request_ids)

        def ended(message: EngineCoreOutputs) -> bool:
            left.difference_update(
                output.request_id for output in message.outputs if output.finish_reason is not None
            )
            return not left

        self.until(ended)

    def call(self, method: str, *args: Any) -> None:
        """Make one utility call and receive messages until its reply."""
        self.begin(f"utility {method}")
        call_id = len(self.exchanges)
        self.send(RequestType.UTILITY, UtilityCall(1, call_id, method, list(args)))
        self.until(lambda message: message.utility_output is not None)

    def close(self) -> None:
        """Close every socket."""
        for socket in (self.handshake, self.input, *self.outputs):
            socket.close(linger=0)


def _address(socket: "zmq.Socket[bytes]") -> str:
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)


def _wait(sockets: "list[zmq.Socket[bytes]]", seconds: float) -> "zmq.Socket[bytes]":
    poller = zmq.Poller()
    for socket in sockets:
        poller.register(socket, zmq.POLLIN)
    ready = poller.poll(seconds * 1000)
    if not ready:
        raise TimeoutError(f"nothing came from the engine for {seconds} s")
    found: zmq.Socket[bytes] = ready[0][0]
    return found


def _request(name: str, tokens: int = 12, client: int = 0, **sampling: Any) -> EngineCoreRequest:
    settings: dict[str, Any] = {"temperature": 0.0, "max_tokens": 4, "eos_token_id": IM_END}
    return EngineCoreRequest(
        name,
        [100 + 7 * i for i in range(tokens)],
        sampling_params=SamplingParams(
            output_kind=OutputKind.DELTA, all_stop_token_ids=[IM_END], **(settings | sampling)
        ),
        arrival_time=time.time(),
        client_index=client,
        external_req_id=name,
    )


def _requests() -> list[EngineCoreRequest]:
    return [
        _request("plain"),
        _request("cached prompt", tokens=300),
        _request("cached prompt again", tokens=300, client=1),
        _request("logprobs", logprobs=3),
        _request("prompt logprobs", tokens=80, prompt_logprobs=4, logprobs=0),
        _request("logprobs of given ids", logprob_token_ids=[5, 6, 7]),
        _request("seeded", temperature=0.8, top_p=0.9, top_k=40, min_p=0.05, seed=7),
        _request("penalties", presence_penalty=1.0, frequency_penalty=0.5, repetition_penalty=1.2),
        _request("bias", logit_bias={11: 100.0}, stop_token_ids=[11]),
        _request("allowed ids", allowed_token_ids=[21, 22]),
        _request("bad words", bad_words=["x"], bad_words_token_ids=[[30], [31, 32]]),
        _request("least tokens", min_tokens=3, ignore_eos=True),
        _request(
            "repetition",
            max_tokens=20,
            allowed_token_ids=[21],
            repetition_detection=RepetitionDetection(2, 1, 3),
        ),
        _request("no grammar library", structured_outputs=StructuredOutputs(regex="a+")),
        _request(
            "choice", structured_outputs=StructuredOutputs(choice=["yes", "no"], backend="xgrammar")
        ),
        _request("no bound", max_tokens=None),
    ]


def _record(recorder: Recorder) -> None:
    recorder.start()
    recorder.call("get_supported_tasks")
    for request in _requests():
        recorder.begin(request.request_id)
        recorder.send(RequestType.ADD, request)
        recorder.finish(request.request_id)
    recorder.begin("batch of two clients")
    batch = [_request(f"batch {i}", client=i % CLIENTS, tokens=10 + i) for i in range(4)]
    for request in batch:
        recorder.send(RequestType.ADD, request)
    recorder.finish(*(request.request_id for request in batch))
    recorder.begin("abort")
    recorder.send(RequestType.ADD, _request("aborted", max_tokens=200, ignore_eos=True))
    recorder.until(lambda message: bool(message.outputs))
    recorder.send(RequestType.ABORT, ["aborted"])
    for method in ("is_sleeping", "list_loras", "get_weight_version", "reset_prefix_cache"):
        recorder.call(method)
    recorder.call("collective_rpc", "check_health")
    recorder.call("no_such_method")
    recorder.call("add_lora", ["adapter", 1, "/nowhere"])
    recorder.begin("pause")
    recorder.send(RequestType.ADD, _request("paused", max_tokens=200, ignore_eos=True))
    recorder.until(lambda message: bool(message.outputs))
    recorder.send(RequestType.UTILITY, UtilityCall(1, 1000, "pause_scheduler", ["abort", True]))
    recorder.finish("paused")
    recorder.until(lambda message: message.utility_output is not None)
    recorder.call("is_scheduler_paused")
    recorder.call("resume_scheduler")
    recorder.begin("death")
    recorder.send(RequestType.ADD, _request("past the vocabulary", logit_bias={VOCAB_SIZE: 1.0}))
    told: set[int] = set()
    while len(told) < CLIENTS:
        slot, frames = recorder.receive()
        if frames == [ENGINE_CORE_DEAD]:
            told.add(slot)


def _serve(python: Path, model: Path, port: int) -> "subprocess.Popen[bytes]":
    command = [
        str(python.parent / "vllm"), "serve", str(model), "--headless",
        "--data-parallel-address", "127.0.0.1", "--data-parallel-rpc-port", str(port),
        "--dtype", "bfloat16", "--enforce-eager", "--max-model-len", "512", "--max-num-seqs", "8",
    ]  # fmt: skip
    return subprocess.Popen(command, env=os.environ | RUN_VARIABLES, start_new_session=True)


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _write(name: str, document: Any) -> None:
    path = TARGET / name
    path.write_text(json.dumps(document, indent=1) + "\n")
    sys.stdout.write(f"{path}: {path.stat().st_size} bytes\n")


def main() -> None:
    """Record and write the three files."""
    python = build_environment()
    model = build_model(python)
    context = zmq.Context()
    recorder = Recorder(context)
    process = _serve(python, model, recorder.port)
    try:
        _record(recorder)
    finally:
        recorder.close()
        context.term()
        _stop(process)
    _write("frames.json", {"clients": CLIENTS, "exchanges": recorder.exchanges})
    told = subprocess.run(
        [str(python), str(HERE / "encode_with_vllm.py")],
        check=True,
        stdout=subprocess.PIPE,
        env=os.environ | RUN_VARIABLES,
    )
    document = json.loads(told.stdout.splitlines()[-1])
    _write("encoded.json", document["encoded"])
    _write("fields.json", document["fields"])


if __name__ == "__main__":
    main()
