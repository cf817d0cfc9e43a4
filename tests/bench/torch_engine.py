"""Tokens per second of the torch engine, and of vLLM beside it where its environment is there.

Both run as processes behind the same front end, with the same bfloat16 weights, and take turns,
so that whatever else the machine does hits both alike: judge by the ratio.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from random import Random

from enginecore_wire.requests import EngineCoreRequest, SamplingParams
from support.checkpoint import fetch_checkpoint
from support.measures import Measure
from support.native_front_end import NativeFrontEnd
from support.vllm_environment import model_dir, vllm_python
from support.vllm_front_end import serve, stop

BATCHES = (1, 16, 64)
PROMPT_TOKENS = 128
NEW_TOKENS = 128
ROUNDS = 2
VOCAB_SIZE = 49_152
SECONDS = 300.0


@contextmanager
def torch_engine() -> Iterator[NativeFrontEnd]:
    """The torch engine, ready for requests."""
    model = model_dir() if model_dir().exists() else fetch_checkpoint()
    with NativeFrontEnd() as front:
        process = subprocess.Popen(
            [sys.executable, "-m", "enginecore_torch", str(model), "--dtype", "bfloat16",
             "--max-model-len", "2048", "--data-parallel-rpc-port", str(front.port)]
        )  # fmt: skip
        try:
            front.accept(SECONDS)
            yield front
        finally:
            process.terminate()
            process.wait()


@contextmanager
def vllm_engine() -> Iterator[NativeFrontEnd]:
    """Stock vLLM, ready for requests."""
    python = vllm_python()
    assert python is not None
    with NativeFrontEnd() as front:
        process = serve(python, model_dir(), front.port, "--max-model-len", "2048")
        try:
            front.accept(SECONDS)
            yield front
        finally:
            stop(process)


def measure(front: NativeFrontEnd, batch: int, seed: int) -> tuple[float, float]:
    """Return tokens per second of prefill, and of decode once every request has begun."""
    random, names = Random(seed), [f"{seed}-{index}" for index in range(batch)]
    params = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)
    requests = [
        EngineCoreRequest(
            name,
            [random.randrange(10, VOCAB_SIZE) for _ in range(PROMPT_TOKENS)],
            sampling_params=params,
        )
        for name in names
    ]
    started = time.perf_counter()
    front.add(*requests)
    unbegun, unfinished = set(names), set(names)
    begun, decoded = started, 0
    while unfinished:
        for output in front.receive(timeout=SECONDS).outputs:
            if not unbegun:
                decoded += len(output.new_token_ids)
            elif output.new_token_ids:
                unbegun.discard(output.request_id)
                begun = time.perf_counter()
            if output.finish_reason is not None:
                unfinished.discard(output.request_id)
    ended = time.perf_counter()
    return batch * PROMPT_TOKENS / (begun - started), decoded / (ended - begun)


def main() -> None:
    """Measure every batch size on every engine there is, in turns; print the best of each."""
    engines = {"torch": torch_engine}
    if vllm_python() is not None and model_dir().exists():
        engines["vllm"] = vllm_engine
    with ExitStack() as stack:
        fronts = {name: stack.enter_context(make()) for name, make in engines.items()}
        for front in fronts.values():
            measure(front, 2, seed=0)
        for batch in BATCHES:
            best = dict.fromkeys(fronts, (0.0, 0.0))
            for turn in range(ROUNDS):
                for name, front in fronts.items():
                    found = measure(front, batch, seed=1000 * batch + turn)
                    best[name] = tuple(map(max, best[name], found))
            for name, (prefill, decode) in best.items():
                Measure(f"{name}: prefill, {batch} requests", prefill, "tokens/s").print()
                Measure(f"{name}: decode, {batch} requests", decode, "tokens/s").print()
            if "vllm" in best:
                ratio = best["torch"][1] / best["vllm"][1]
                name = f"decode of torch to vllm, {batch} requests"
                Measure(name, ratio, "x", 1.0, "at_least").print()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the engines are ended either way
    main()
