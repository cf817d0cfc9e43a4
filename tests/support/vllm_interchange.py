"""Run vLLM's LLMEngine and AsyncLLM, with their own clients or with ours, and print what they say.

    python vllm_interchange.py MODEL own
    python vllm_interchange.py MODEL '{"LLMEngine": {…}, "AsyncLLM": {…}}'

in vLLM's environment. With `own` each starts an engine by vLLM's own client. Otherwise they get
SyncMPClient and AsyncMPClient, made with the parameters given (`native` as an object). Each
time a second LLMEngine has its engine in this process. Prints one line of JSON.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from vllm.engine.arg_utils import AsyncEngineArgs, EngineArgs
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.core import EngineCore
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.executor import Executor

from enginecore_client import AsyncMPClient, InprocClient, NativeOptions, SyncMPClient
from support.vllm_adapter import AwaitedAdapter, BlockingAdapter, VllmCore, installed

PROMPTS = [
    "The capital of France is",
    "Once upon a time",
    "To be, or not to be:",
    "1, 2, 3, 4,",
    "def fibonacci(n):",
    "The chemical symbol of gold is",
]
SETTINGS: dict[str, Any] = {
    "dtype": "float32", "enforce_eager": True, "max_model_len": 1024, "max_num_seqs": 16,
    "kv_cache_memory_bytes": 256 << 20,
}  # fmt: skip
LONG = 200
TAKEN = 5
"""Outputs read of a request before it is aborted."""


def greedy(tokens: int = 16, **more: Any) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=tokens, **more)


def answer_of(output: RequestOutput) -> dict[str, Any]:
    """Return what must be the same whichever client was used."""
    return {
        "prompt": list(output.prompt_token_ids or ()),
        "finished": output.finished,
        "outputs": [
            {
                "index": each.index,
                "tokens": list(each.token_ids),
                "text": each.text,
                "finish_reason": each.finish_reason,
                "stop_reason": each.stop_reason,
            }
            for each in sorted(output.outputs, key=lambda each: each.index)
        ],
    }


REQUESTS: dict[str, tuple[str, SamplingParams]] = {
    **{f"greedy {number}": (prompt, greedy()) for number, prompt in enumerate(PROMPTS)},
    "two": (PROMPTS[1], SamplingParams(n=2, temperature=1.0, seed=5, max_tokens=12)),
    "stop string": (PROMPTS[0], greedy(60, stop=["answer"])),
    "stop at the end": (PROMPTS[3], greedy(6, ignore_eos=True)),
}


def run_blocking(engine: LLMEngine) -> dict[str, Any]:
    """Return the answers of LLMEngine: all requests at once, and one that is aborted."""
    answers: dict[str, Any] = {}
    for name, (prompt, sampling) in REQUESTS.items():
        engine.add_request(name, prompt, _with_kind(sampling, RequestOutputKind.FINAL_ONLY))
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                answers[output.request_id] = answer_of(output)
    engine.add_request("aborted", PROMPTS[0], greedy(LONG, ignore_eos=True))
    engine.add_request("beside it", PROMPTS[1], greedy(20))
    steps = 0
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.request_id == "aborted":
                assert not output.finished
                steps += 1
            elif output.finished:
                answers["beside it"] = answer_of(output)
        if steps == TAKEN:
            engine.abort_request(["aborted"])
    answers["outputs before the abort"] = steps
    answers["prefix cache reset"] = engine.reset_prefix_cache()
    return answers


async def run_awaited(engine: AsyncLLM) -> dict[str, Any]:
    """Return the answers of AsyncLLM: streams side by side, and one that is left early."""
    finals = await asyncio.gather(
        *(_stream(engine, name, *request) for name, request in REQUESTS.items())
    )
    answers = dict(zip(REQUESTS, finals, strict=True))
    taken = 0
    sampling = _with_kind(greedy(LONG, ignore_eos=True), RequestOutputKind.DELTA)
    left = engine.generate(PROMPTS[0], sampling, "aborted")
    async for _ in left:
        taken += 1
        if taken == TAKEN:
            break
    await left.aclose()  # type: ignore[attr-defined]
    await engine.pause_generation(mode="wait", clear_cache=False)
    answers["paused"] = await engine.is_paused()
    await engine.resume_generation()
    answers["resumed"] = not await engine.is_paused()
    answers["prefix cache reset"] = await engine.reset_prefix_cache()
    answers["tasks"] = sorted(await engine.get_supported_tasks())
    await engine.check_health()
    return answers


async def _stream(
    engine: AsyncLLM, name: str, prompt: str, sampling: SamplingParams
) -> dict[str, Any]:
    """Return the answer of one stream, put together from its deltas."""
    tokens: dict[int, list[int]] = {}
    texts: dict[int, str] = {}
    ends: dict[int, tuple[Any, Any]] = {}
    pieces = 0
    deltas = _with_kind(sampling, RequestOutputKind.DELTA)
    outputs: AsyncIterator[RequestOutput] = engine.generate(prompt, deltas, name)
    async for output in outputs:
        pieces += 1
        for each in output.outputs:
            tokens.setdefault(each.index, []).extend(each.token_ids)
            texts[each.index] = texts.get(each.index, "") + each.text
            if each.finish_reason is not None:
                ends[each.index] = each.finish_reason, each.stop_reason
    return {
        "streamed": pieces > 1,
        "outputs": [
            {"index": index, "tokens": tokens[index], "text": texts[index], "end": ends[index]}
            for index in sorted(tokens)
        ],
    }


def _with_kind(sampling: SamplingParams, kind: RequestOutputKind) -> SamplingParams:
    changed = sampling.clone()
    changed.output_kind = kind
    return changed


def blocking_answers(model: str, *, multiprocess: bool) -> dict[str, Any]:
    """Return the answers of an LLMEngine made now."""
    config = EngineArgs(model=model, **SETTINGS).create_engine_config()
    engine = LLMEngine(
        config, Executor.get_class(config), log_stats=False, multiprocess_mode=multiprocess
    )
    try:
        return run_blocking(engine)
    finally:
        engine.engine_core.shutdown()


async def awaited_answers(model: str) -> dict[str, Any]:
    """Return the answers of an AsyncLLM made now."""
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model=model, **SETTINGS))
    try:
        return await run_awaited(engine)
    finally:
        engine.shutdown()


def clients(options: dict[str, Any]) -> AbstractContextManager[None]:
    """Return a context in which vLLM's engines get our clients."""

    def blocking(
        multiprocess_mode: bool, vllm_config: Any, executor_class: Any, log_stats: bool, **_: Any
    ) -> BlockingAdapter[Any]:
        if multiprocess_mode:
            return BlockingAdapter(SyncMPClient(**client_options(options["LLMEngine"])))
        core = EngineCore(vllm_config, executor_class, log_stats)
        return BlockingAdapter(InprocClient(VllmCore(core)))

    def awaited(**_: Any) -> AwaitedAdapter:
        return AwaitedAdapter(AsyncMPClient(**client_options(options["AsyncLLM"])))

    return installed(blocking, awaited)


def client_options(given: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of a client that were given as JSON."""
    return given | {"native": NativeOptions(**given.get("native", {}))}


def main() -> None:
    """Print the answers."""
    model, wanted = sys.argv[1:]
    with nullcontext() if wanted == "own" else clients(json.loads(wanted)):
        answers = {
            "LLMEngine": blocking_answers(model, multiprocess=True),
            "AsyncLLM": asyncio.run(awaited_answers(model)),
            "in process": blocking_answers(model, multiprocess=False),
        }
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
