"""From an EngineCluster to an answer: the sample, the real model, each source of addresses."""

import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from enginecore_client import start_metrics_server
from enginecore_client.text import Detokenizer, Tokenizer
from enginecore_wire.outputs import FinishReason
from support.checkpoint import fetch_checkpoint
from support.eventually import eventually
from support.faces import FACES, Face, params
from support.space import Engines

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.model,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("installation"),
]

FRANCE = "What is the capital of France?"
QUESTIONS = [FRANCE, "Name a colour.", "Who wrote Hamlet?", "Count to five."]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(fetch_checkpoint())


def from_status(smollm: Engines, tmp_path: Path) -> Any:
    return smollm.status()["clientAddresses"]


def from_config_map(smollm: Engines, tmp_path: Path) -> Any:
    """The file as a pod would mount it."""
    found = smollm.space.kubectl.get("configmap", f"{smollm.name}-client-addresses")
    file = tmp_path / "client_addresses.json"
    file.write_text(found["data"][file.name])
    return file


def live(smollm: Engines, tmp_path: Path) -> Any:
    return smollm


@pytest.mark.parametrize("kind", list(FACES))
@pytest.mark.parametrize("addresses", [from_status, from_config_map, live])
def test_chat_over_both_engines(
    addresses: Callable[[Engines, Path], Any],
    kind: str,
    smollm: Engines,
    tokenizer: Tokenizer,
    make_face: Callable[..., Face],
    threads: ThreadPoolExecutor,
    tmp_path: Path,
) -> None:
    face = make_face(kind, addresses(smollm, tmp_path), **smollm.key_options(tmp_path))

    def ask(number: int) -> tuple[str, FinishReason | None, int]:
        question = QUESTIONS[number // 2]
        prompt = tokenizer.encode_chat([{"role": "user", "content": question}])
        detokenizer, text, pieces = Detokenizer(tokenizer), "", 0
        reason = None
        sampling = tokenizer.complete(params(24, ignore_eos=False))
        for output in face.generate(prompt, sampling, data_parallel_rank=number % 2):
            text += detokenizer.push(output.new_token_ids)
            reason, pieces = output.finish_reason, pieces + 1
        return text + detokenizer.finish(), reason, pieces

    answers = list(threads.map(ask, range(2 * len(QUESTIONS))))
    for rank in (0, 1):
        text, reason, pieces = answers[rank]
        assert (text, reason) == ("The capital of France is Paris.", FinishReason.STOP)
        assert pieces > 1, "the answer comes as a stream"
    # Greedy: the same question gets the same answer on either engine.
    texts = [text for text, _, _ in answers]
    assert texts[::2] == texts[1::2]


def test_client_metrics_over_http_tell_each_engine(
    smollm: Engines,
    make_face: Callable[..., Face],
    registry: CollectorRegistry,
    threads: ThreadPoolExecutor,
) -> None:
    server, thread = start_metrics_server(registry, 0, "127.0.0.1")
    try:
        face = make_face("async", smollm, registry=registry)
        streams = [
            face.generate([1, 2, 3], params(64), data_parallel_rank=rank) for rank in (0, 0, 1)
        ]
        endings = [threads.submit(list, stream) for stream in streams]

        def scrape() -> dict[tuple[str, str], float]:
            url = f"http://127.0.0.1:{server.server_port}/metrics"
            with urllib.request.urlopen(url, timeout=5) as answer:
                text = answer.read().decode()
            return {
                (sample.name, sample.labels["engine"]): sample.value
                for family in text_string_to_metric_families(text)
                for sample in family.samples
                if "engine" in sample.labels
            }

        def busy() -> bool:
            seen = scrape()
            running = [seen.get(("vllm:num_requests_running", rank)) for rank in "01"]
            # A request counts as soon as it is there; blocks are taken in the step after.
            usage = [seen.get(("vllm:kv_cache_usage_perc", rank), 0.0) for rank in "01"]
            return running == [2.0, 1.0] and all(share > 0 for share in usage)

        eventually(busy, "the gauges tell each engine's load", 20)
        for ending in endings:
            ending.result(60)
        seen = scrape()
        tokens = [seen["enginecore_client_generation_tokens_total", rank] for rank in "01"]
        assert tokens == [128.0, 64.0]
        idle = [("vllm:num_requests_running", rank) for rank in "01"]
        eventually(lambda: [scrape()[key] for key in idle] == [0.0, 0.0], "idle reads 0", 20)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
