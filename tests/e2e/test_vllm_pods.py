"""A real vLLM behind the engine server in real pods: runtime type vllm in an image without us."""

import os
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from devcluster.images import base_reference, build_base
from devcluster.locations import Locations
from enginecore_client import EngineDeadError
from enginecore_client.text import Detokenizer, Tokenizer
from enginecore_wire.contract import ServerStatus
from enginecore_wire.outputs import FinishReason
from support.eventually import eventually
from support.faces import FACES, Face, params
from support.installation import Installation
from support.pending import serves
from support.pod_processes import pod_processes
from support.space import Engines, Space, temporary_space
from support.vllm_cluster import program_map, vllm_spec
from support.vllm_environment import VLLM_VERSION, build_environment, build_model
from support.vllm_pod import ENGINE_TITLE, START_SECONDS

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.model,
    pytest.mark.timeout(1200),
    pytest.mark.usefixtures("installation"),
]

BASE = "vllm"
RANKS = 2
QUESTIONS = ["What is the capital of France?", "Name a colour.", "Count to five."]
ANSWER = "The capital of France is Paris."
"""To the first question."""
WORKERS = 3
BUDGET_SECONDS = 1.0
LOG_LINES = 30
"""Of the last fifty, how many at least reach the status; what fits is bounded in bytes."""


@pytest.fixture(scope="module")
def spec(installation: Installation, devcluster_locations: Locations) -> dict[str, Any]:
    """Engines of type vllm, on this machine's vLLM."""
    installation.cluster.load_image(build_base(BASE, devcluster_locations.images, print))
    python = build_environment()
    return vllm_spec(python, build_model(python), base_reference(BASE))


@pytest.fixture(scope="module")
def vllm(installation: Installation, spec: dict[str, Any]) -> Iterator[Engines]:
    """Two of them."""
    with temporary_space(installation.cluster) as space:
        space.kubectl.apply(program_map())
        engines = Engines(space, "real")
        engines.apply(replicas=RANKS, **spec)
        engines.wait_ready(RANKS, START_SECONDS)
        yield engines


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(build_model(build_environment()))


@pytest.mark.parametrize("kind", list(FACES))
def test_chat_over_both_engines(
    kind: str,
    vllm: Engines,
    tokenizer: Tokenizer,
    make_face: Callable[..., Face],
    threads: ThreadPoolExecutor,
) -> None:
    face = make_face(kind, vllm)

    def ask(number: int) -> tuple[str, FinishReason | None, int]:
        prompt = tokenizer.encode_chat([{"role": "user", "content": QUESTIONS[number // RANKS]}])
        detokenizer, text, pieces = Detokenizer(tokenizer), "", 0
        reason = None
        sampling = tokenizer.complete(params(24, ignore_eos=False))
        for output in face.generate(prompt, sampling, data_parallel_rank=number % RANKS):
            text += detokenizer.push(output.new_token_ids)
            reason, pieces = output.finish_reason, pieces + 1
        return text + detokenizer.finish(), reason, pieces

    answers = list(threads.map(ask, range(RANKS * len(QUESTIONS))))
    text, reason, pieces = answers[0]
    assert (text, reason) == (ANSWER, FinishReason.STOP)
    assert pieces > 1, "the answer comes as a stream"
    texts = [text for text, _, _ in answers]
    assert texts[::RANKS] == texts[1::RANKS], "greedy: either engine says the same"


def test_status_tells_of_the_engine_and_how_it_started(vllm: Engines) -> None:
    status = vllm.core(0)["status"]
    facts = status["engine"]
    assert facts["version"].startswith(VLLM_VERSION)
    assert (facts["vocabSize"], facts["maxModelLen"]) == (49152, 1024)
    assert facts["numGpuBlocks"] > 0
    with urllib.request.urlopen(f"http://{status['pod']['ip']}:8080/status", timeout=5) as page:
        told = msgspec.json.decode(page.read(), type=ServerStatus)
    steps = [(record.phase, record.reason) for record in told.phases]
    assert list(dict(steps)) == ["Starting", "Handshaking", "Loading", "Ready"]
    loading = [reason for phase, reason in steps if phase == "Loading"]
    assert loading[0] == "EngineLoads"
    assert {"LoadingWeights", "AllocatingCache"} <= set(loading)


def test_killed_engine_is_told_replaced_and_used_again(
    vllm: Engines, make_face: Callable[..., Face], record_property: Callable[[str, object], None]
) -> None:
    face = make_face("sync", vllm)
    epoch, uid = vllm.epoch(0), vllm.pod(0)["metadata"]["uid"]
    stream = face.generate([1, 2, 3], params(900), data_parallel_rank=0)
    next(stream)
    (engine,) = pod_processes(uid, ENGINE_TITLE.decode())
    os.kill(engine, signal.SIGKILL)
    killed = time.monotonic()
    with pytest.raises(EngineDeadError) as caught:
        list(stream)
    seconds = time.monotonic() - killed
    record_property("told_seconds", round(seconds, 3))
    assert caught.value.engine == 0
    assert seconds <= BUDGET_SECONDS
    assert serves(face, 1)
    vllm.wait_epoch(0, epoch + 1, START_SECONDS)
    eventually(lambda: serves(face, 0), "the new engine serves the same client", 30)


def test_engine_of_several_processes(
    space: Space, spec: dict[str, Any], tokenizer: Tokenizer, make_face: Callable[..., Face]
) -> None:
    """`parallelism` reaches vLLM: three workers share each layer (the model has three KV heads).

    In bfloat16 their sums round to other numbers than one worker's, and so to other words.
    """
    space.kubectl.apply(program_map())
    engines = Engines(space, "shared")
    runtime = spec["runtime"]
    exact = runtime | {"args": [*runtime["args"], "--dtype", "float32"]}
    engines.apply(replicas=1, **spec | {"runtime": exact, "parallelism": {"tensor": WORKERS}})
    engines.wait_ready(1, START_SECONDS)
    uid = engines.pod(0)["metadata"]["uid"]
    assert len(pod_processes(uid, "VLLM::Worker")) == WORKERS
    prompt = tokenizer.encode_chat([{"role": "user", "content": QUESTIONS[0]}])
    sampling = tokenizer.complete(params(24, ignore_eos=False))
    outputs = list(make_face("sync", engines).generate(prompt, sampling))
    detokenizer = Detokenizer(tokenizer)
    text = "".join(detokenizer.push(output.new_token_ids) for output in outputs)
    assert text + detokenizer.finish() == ANSWER
    assert outputs[-1].finish_reason is FinishReason.STOP


def test_failed_start_is_told_with_the_end_of_its_log(space: Space, spec: dict[str, Any]) -> None:
    space.kubectl.apply(program_map())
    engines = Engines(space, "short")
    runtime = spec["runtime"]
    too_small = [*runtime["args"], "--kv-cache-memory-bytes", "1"]
    engines.apply(
        replicas=1, **spec | {"runtime": runtime | {"args": too_small}, "restart": {"limit": 1}}
    )

    def given_up() -> dict[str, Any] | None:
        found = space.get("enginecores", "short-0") or {}
        status: dict[str, Any] = found.get("status", {})
        return status if status.get("phase") == "Failed" else None

    status = eventually(given_up, "the engine is given up", START_SECONDS, 0.5)
    assert status is not None
    message = status["failure"]["message"]
    print(message)
    cause = "the first error in its log: ValueError: No available memory for the cache blocks"
    assert cause in message.splitlines()[0]
    assert len(message.splitlines()) >= LOG_LINES
    (told,) = [e for e in space.events("short-0") if e["reason"] == "PodFailed"]
    assert cause in told["note"]
    assert told["note"].splitlines()[-1] == message.splitlines()[-1]


def test_image_is_not_ours(vllm: Engines) -> None:
    """The server comes by the init container alone."""
    pod = vllm.pod(1)
    (container,) = pod["spec"]["containers"]
    (copier,) = pod["spec"]["initContainers"]
    assert container["image"] == base_reference(BASE)
    assert copier["name"] == "enginecore-server"
    assert Path(container["command"][-1]).suffix == ".pyz"
