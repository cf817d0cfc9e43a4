"""A real vLLM that shares each layer among several workers: its words, and the death of one."""

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from enginecore_client.errors import EngineDeadError
from enginecore_client.text import Tokenizer
from enginecore_wire.outputs import FinishReason
from enginecore_wire.requests import EngineCoreRequest
from support.faces import FACES, Face, params
from support.pod import Pod, alive, client_addresses
from support.vllm_engines import ENVIRONMENT, EngineRoom
from support.vllm_pod import vllm_pod, wait_ready

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(900),
    pytest.mark.may_leak("processes", "threads", "sockets", reason="the engine is shared"),
]

WORKERS = 3
"""The model has nine heads and three KV heads."""

OPTIONS = (
    "--dtype", "float32", "--enforce-eager", "--max-model-len", "1024", "--max-num-seqs", "16",
    "--kv-cache-memory-bytes", str(256 << 20), "--tensor-parallel-size", str(WORKERS),
)  # fmt: skip
"""float32: sums of three parts round to other bfloat16 numbers than sums of one, and the model
likes two first words of the answer below almost equally."""

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
ANSWER = [504, 3575, 282, 4649, 314, 7042, 30, 2]
"""What vLLM's own `LLM` says with one worker: "The capital of France is Paris." and the end."""

BUDGET_SECONDS = 1.0
END_SECONDS = 15.0


@pytest.fixture(scope="module")
def pod(room: EngineRoom) -> Iterator[Pod]:
    """An engine of several workers; it takes the place of the engines of other tests."""
    room.clear()
    with vllm_pod(room.python, room.model, *OPTIONS, env=ENVIRONMENT) as started:
        wait_ready(started)
        yield started


@pytest.fixture(scope="module")
def faces(pod: Pod) -> Iterator[list[Face]]:
    """A client of each kind."""
    made = [make(client_addresses([pod])) for make in FACES.values()]
    yield made
    for face in made:
        face.close()


def test_several_workers_say_what_one_says(faces: list[Face], tokenizer: Tokenizer) -> None:
    sampling = tokenizer.complete(params(24, ignore_eos=False))
    for face in faces:
        outputs = list(face.generate(tokenizer.encode_chat(QUESTION), sampling))
        assert [token for output in outputs for token in output.new_token_ids] == ANSWER
        assert outputs[-1].finish_reason is FinishReason.STOP


def test_a_killed_worker_is_told_within_a_second_and_the_pod_ends(
    pod: Pod, faces: list[Face]
) -> None:
    workers = [pid for pid in pod.engine_processes() if b"::Worker" in title(pid)]
    assert len(workers) == WORKERS
    streams = [face.generate([1, 2, 3], params(900)) for face in faces]
    for stream in streams:
        next(stream)
    for face in faces:
        face.add(EngineCoreRequest("queued", [1, 2], sampling_params=params(900)))
        face.get_output()
    below = pod.engine_processes()
    with ThreadPoolExecutor() as threads:
        calls = [threads.submit(list, stream) for stream in streams]
        calls += [threads.submit(drain, face) for face in faces]
        os.kill(workers[-1], signal.SIGKILL)
        killed = time.monotonic()
        errors = [call.exception(timeout=60) for call in calls]
        told = time.monotonic() - killed
    code = pod.process.wait(END_SECONDS)
    ended = time.monotonic() - killed
    print(f"a worker killed: {len(errors)} calls failed after {told:.3f} s, pod {ended:.3f} s")
    assert {type(error) for error in errors} == {EngineDeadError}
    assert told <= BUDGET_SECONDS
    assert code == 1
    assert not any(alive(pid) for pid in below)
    assert "worker" in "\n".join(line for line in pod.log if "engine lost" in line)


def title(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def drain(face: Face) -> list[object]:
    """Read messages until an error ends it."""
    while True:
        face.get_output()
