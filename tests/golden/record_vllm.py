"""Record what a real vLLM 0.32 engine and vLLM's own encoder put on the wire.

    python tests/golden/record_vllm.py

builds (once) the environment of tests/support/vllm_environment.py, launches `vllm serve MODEL
--headless` there, answers its handshake, sends it the requests below from two client slots and
writes every frame of both directions to tests/golden/vllm-0.32/frames.json. Then
tests/golden/encode_with_vllm.py runs in that environment: its messages go to encoded.json and
its list of fields to fields.json. Frames are base64; times and random ids in them differ from
run to run.

Two more engines are asked for arrays: one takes prompt embeddings, one pools. Their frames go to
embeddings.json and pooling.json. Arguments choose what is recorded: `python record_vllm.py
pooling`; without any, all of it.
"""

import base64
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch
import zmq

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from enginecore_wire.requests import (
    EngineCoreRequest,
    OutputKind,
    PoolingParams,
    RepetitionDetection,
    RequestType,
    SamplingParams,
    StructuredOutputs,
    UtilityCall,
)
from enginecore_wire.tensors import Tensor
from support.vllm_environment import RUN_VARIABLES, build_environment, build_model
from support.vllm_front_end import VllmFrontEnd, serve, stop

HERE = Path(__file__).resolve().parent
TARGET = HERE / "vllm-0.32"
CLIENTS = 2
VOCAB_SIZE = 49152
HIDDEN_SIZE = 576
IM_END = 2


class Record:
    """Every frame that passed, under the name of what it was part of."""

    def __init__(self) -> None:
        self.exchanges: list[dict[str, Any]] = []
        self._name = ""

    def begin(self, name: str) -> None:
        """Give the frames that follow a common name."""
        self._name = name

    def note(self, channel: str, frames: list[bytes]) -> None:
        """Keep the frames of one message."""
        text = [base64.b64encode(frame).decode() for frame in frames]
        self.exchanges.append({"name": self._name, "channel": channel, "frames": text})


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


def _converse(engine: VllmFrontEnd, record: Record) -> None:
    def call(method: str, *args: Any) -> None:
        record.begin(f"utility {method}")
        engine.call(method, *args)

    def begin_long(name: str) -> None:
        engine.send(RequestType.ADD, _request(name, max_tokens=200, ignore_eos=True))
        engine.until(lambda message: bool(message.outputs))

    record.begin("start")
    engine.start()
    call("get_supported_tasks")
    for request in _requests():
        record.begin(request.request_id)
        engine.send(RequestType.ADD, request)
        engine.finish([request.request_id])
    record.begin("batch of two clients")
    batch = [_request(f"batch {i}", client=i % CLIENTS, tokens=10 + i) for i in range(4)]
    for request in batch:
        engine.send(RequestType.ADD, request)
    engine.finish([request.request_id for request in batch])
    record.begin("abort")
    begin_long("aborted")
    engine.send(RequestType.ABORT, ["aborted"])
    for method in ("is_sleeping", "list_loras", "get_weight_version", "reset_prefix_cache"):
        call(method)
    call("collective_rpc", "check_health")
    call("no_such_method")
    call("add_lora", ["adapter", 1, "/nowhere"])
    record.begin("pause")
    begin_long("paused")
    engine.send(RequestType.UTILITY, UtilityCall(1, 1000, "pause_scheduler", ["abort", True]))
    engine.finish(["paused"])
    engine.until(lambda message: message.utility_output is not None)
    call("is_scheduler_paused")
    call("resume_scheduler")
    record.begin("death")
    engine.send(RequestType.ADD, _request("past the vocabulary", logit_bias={VOCAB_SIZE: 1.0}))
    told: set[int] = set()
    while len(told) < CLIENTS:
        slot, message = engine.receive()
        if message is None:
            told.add(slot)


def _embed(engine: VllmFrontEnd, record: Record) -> None:
    record.begin("start")
    engine.start()
    rows = torch.linspace(-0.05, 0.05, 3 * HIDDEN_SIZE).to(torch.bfloat16).reshape(3, HIDDEN_SIZE)
    for name, tokens, mask in (
        ("embeddings alone", None, None),
        ("embeddings among tokens", [1, 100, 101], [True, False, True]),
    ):
        record.begin(name)
        request = msgspec.structs.replace(
            _request(name, logprobs=2),
            prompt_token_ids=tokens,
            prompt_embeds=Tensor.of(rows),
            prompt_is_token_ids=mask,
        )
        engine.send(RequestType.ADD, request)
        engine.finish([name])


def _pool(engine: VllmFrontEnd, record: Record) -> None:
    record.begin("start")
    engine.start()
    record.begin("utility get_supported_tasks")
    engine.call("get_supported_tasks")
    for task in ("embed", "token_embed"):
        record.begin(task)
        request = msgspec.structs.replace(
            _request(task),
            sampling_params=None,
            pooling_params=PoolingParams(task=task, use_activation=True),
        )
        engine.send(RequestType.ADD, request)
        engine.finish([task])


def _write(name: str, document: Any) -> None:
    path = TARGET / name
    path.write_text(json.dumps(document, indent=1) + "\n")
    sys.stdout.write(f"{path}: {path.stat().st_size} bytes\n")


SMALL = ("--max-model-len", "512", "--max-num-seqs", "8")

CONVERSATIONS: dict[str, tuple[Callable[[VllmFrontEnd, Record], None], tuple[str, ...]]] = {
    "frames": (_converse, SMALL),
    "embeddings": (_embed, (*SMALL, "--enable-prompt-embeds")),
    "pooling": (_pool, (*SMALL, "--runner", "pooling")),
}
"""What is said to an engine, and the options it is started with, by file."""


def _record(name: str, python: Path, model: Path) -> None:
    converse, options = CONVERSATIONS[name]
    record = Record()
    context = zmq.Context()
    engine = VllmFrontEnd(context, CLIENTS, record.note)
    process = serve(python, model, engine.port, *options)
    try:
        converse(engine, record)
    finally:
        engine.close()
        context.term()
        stop(process)
    _write(f"{name}.json", {"clients": CLIENTS, "exchanges": record.exchanges})


def _encode(python: Path) -> None:
    told = subprocess.run(
        [str(python), str(HERE / "encode_with_vllm.py")],
        check=True,
        stdout=subprocess.PIPE,
        env=os.environ | RUN_VARIABLES,
    )
    document = json.loads(told.stdout.splitlines()[-1])
    _write("encoded.json", document["encoded"])
    _write("fields.json", document["fields"])


def main(chosen: list[str]) -> None:
    """Record and write what is chosen, or everything."""
    python = build_environment()
    model = build_model(python)
    for name in CONVERSATIONS:
        if not chosen or name in chosen:
            _record(name, python, model)
    if not chosen or "encoded" in chosen:
        _encode(python)


if __name__ == "__main__":
    main(sys.argv[1:])
