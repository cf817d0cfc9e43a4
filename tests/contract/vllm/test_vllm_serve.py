"""vLLM's own front end, `vllm serve`, on torch engines: one, and two with its coordinator."""

import json
import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from support.eventually import eventually
from support.torch_processes import torch_engine
from support.vllm_api import SERVED_NAME, VllmApi
from support.vllm_engines import EngineRoom
from support.vllm_environment import RUN_VARIABLES

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(900),
    pytest.mark.may_leak("processes", "threads", "sockets", reason="one front end for the module"),
]

CONTEXT = 1024
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
MANY = 12
BENCH_PROMPTS = 24


@pytest.fixture(scope="module", params=[1, 2], ids=["one engine", "two engines"])
def api(request: pytest.FixtureRequest, room: EngineRoom) -> Iterator[VllmApi]:
    """vLLM's API server over torch engines: one, or as many as engines, which is its default."""
    room.clear()
    python, model, ranks = room.python, room.model, request.param
    length = ("--max-model-len", str(CONTEXT))
    with ExitStack() as stack:
        server = stack.enter_context(VllmApi(python, model, ranks, *length))
        for rank in range(ranks):
            stack.enter_context(
                torch_engine(model, server.rpc_port, rank, ranks, *length,
                             "--threads", "1", "--kv-cache-bytes", str(128 << 20))
            )  # fmt: skip
        yield server.wait_ready()


def chat(api: VllmApi, **body: Any) -> dict[str, Any]:
    """Ask the question greedily."""
    return api.post(CHAT, **{"messages": QUESTION, "temperature": 0, "max_tokens": 24} | body)


def test_chat_is_answered_and_counted(api: VllmApi) -> None:
    answer = chat(api, return_token_ids=True)
    (choice,) = answer["choices"]
    assert "Paris" in choice["message"]["content"]
    assert choice["finish_reason"] == "stop"
    prompt = api.post("/tokenize", messages=QUESTION)["tokens"]
    assert answer["prompt_token_ids"] == prompt
    assert answer["usage"] == answer["usage"] | {
        "prompt_tokens": len(prompt),
        "completion_tokens": len(choice["token_ids"]),
        "total_tokens": len(prompt) + len(choice["token_ids"]),
    }


def test_streamed_chat_is_the_same_answer(api: VllmApi) -> None:
    whole = chat(api)
    events = list(
        api.stream(
            CHAT, messages=QUESTION, temperature=0, max_tokens=24,
            stream_options={"include_usage": True},
        )
    )  # fmt: skip
    *parts, last = events
    text = [part["choices"][0]["delta"].get("content") or "" for part in parts]
    assert "".join(text) == whole["choices"][0]["message"]["content"]
    assert len([piece for piece in text if piece]) > 3, "it comes in pieces"
    assert parts[-1]["choices"][0]["finish_reason"] == "stop"
    assert last["choices"] == []
    for field in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert last["usage"][field] == whole["usage"][field]


def test_max_tokens_ends_with_length(api: VllmApi) -> None:
    answer = chat(api, max_tokens=3)
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 3


def test_stop_string_ends_the_request_in_the_engine(api: VllmApi) -> None:
    answer = chat(api, stop=["France"], max_tokens=200)
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "stop"
    assert choice["stop_reason"] == "France"
    assert "France" not in choice["message"]["content"]
    eventually(lambda: sum(api.samples("vllm:num_requests_running").values()) == 0)


def test_several_choices(api: VllmApi) -> None:
    answer = chat(api, n=3, temperature=1.0, seed=1, max_tokens=8, ignore_eos=True)
    assert sorted(choice["index"] for choice in answer["choices"]) == [0, 1, 2]
    assert answer["usage"]["completion_tokens"] == 24


def test_logprobs(api: VllmApi) -> None:
    answer = chat(api, logprobs=True, top_logprobs=3, max_tokens=4)
    entries = answer["choices"][0]["logprobs"]["content"]
    assert len(entries) == 4
    for entry in entries:
        assert len(entry["top_logprobs"]) == 3
        best = entry["top_logprobs"][0]
        assert best["token"] == entry["token"], "greedy takes the most likely"
        assert best["logprob"] == entry["logprob"] <= 0
        assert [top["logprob"] for top in entry["top_logprobs"]] == sorted(
            (top["logprob"] for top in entry["top_logprobs"]), reverse=True
        )


def test_prompt_logprobs(api: VllmApi) -> None:
    answer = api.post(
        COMPLETIONS, prompt="The capital of France is", temperature=0, max_tokens=2,
        prompt_logprobs=2,
    )  # fmt: skip
    first, *others = answer["choices"][0]["prompt_logprobs"]
    assert first is None
    assert len(others) == answer["usage"]["prompt_tokens"] - 1
    assert all(entry["logprob"] <= 0 for position in others for entry in position.values())
    assert all(min(entry["rank"] for entry in position.values()) == 1 for position in others)


def test_a_wrong_request_is_refused_and_harms_nothing(api: VllmApi) -> None:
    with pytest.raises(Exception, match="400"):
        chat(api, temperature=-1)
    assert "Paris" in chat(api)["choices"][0]["message"]["content"]


def test_closing_the_connection_aborts_the_request(api: VllmApi) -> None:
    events = api.stream(CHAT, messages=QUESTION, temperature=0, max_tokens=900, ignore_eos=True)
    for _ in range(4):
        next(events)
    eventually(lambda: sum(api.samples("vllm:num_requests_running").values()) == 1)
    events.close()  # type: ignore[attr-defined]
    eventually(lambda: sum(api.samples("vllm:num_requests_running").values()) == 0)
    assert chat(api)["usage"]["completion_tokens"] < 24


def test_requests_at_once_go_to_every_engine(api: VllmApi) -> None:
    before = api.samples("vllm:request_success_total")
    alone = chat(api, max_tokens=16, ignore_eos=True)["choices"][0]["message"]["content"]
    with ThreadPoolExecutor(MANY) as pool:
        answers = list(pool.map(lambda _: chat(api, max_tokens=16, ignore_eos=True), range(MANY)))
    texts = [answer["choices"][0]["message"]["content"] for answer in answers]
    assert texts == [alone] * MANY
    assert {answer["usage"]["completion_tokens"] for answer in answers} == {16}
    after = api.samples("vllm:request_success_total")
    shares = {engine: after[engine] - before.get(engine, 0) for engine in after}
    assert sum(shares.values()) == MANY + 1
    assert len(shares) == api.ranks
    assert min(shares.values()) >= MANY // api.ranks - 2


def test_bench_serve_has_no_failed_request(api: VllmApi, room: EngineRoom, tmp_path: Path) -> None:
    command = [
        str(room.python.with_name("vllm")), "bench", "serve", "--backend", "openai-chat",
        "--base-url", api.url, "--endpoint", CHAT, "--model", SERVED_NAME,
        "--tokenizer", str(room.model), "--dataset-name", "random",
        "--random-input-len", "64", "--random-output-len", "32", "--ignore-eos",
        "--num-prompts", str(BENCH_PROMPTS), "--max-concurrency", "8", "--seed", "1",
        "--save-result", "--result-dir", str(tmp_path), "--result-filename", "bench.json",
    ]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=800, env=os.environ | RUN_VARIABLES
    )
    assert done.returncode == 0, done.stderr[-4000:]
    print(done.stdout[done.stdout.find("====") :])
    result = json.loads((tmp_path / "bench.json").read_text())
    assert result["completed"] == BENCH_PROMPTS
    assert result.get("failed", 0) == 0
    assert result["total_output_tokens"] == BENCH_PROMPTS * 32
