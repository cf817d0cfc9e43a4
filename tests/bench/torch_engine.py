"""Tokens per second of the torch engine, and of vLLM beside it where its environment is there.

Both run as processes behind the same front end, with the same bfloat16 weights, and take turns,
so that whatever else the machine does hits both alike: judge by the ratios. On a busy machine the
one of processor time is the steadier; OMP_NUM_THREADS=1 helps both engines there.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from typing import NamedTuple

import psutil

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


class Engine(NamedTuple):
    """An engine that is ready, and the process it was launched as."""

    front: NativeFrontEnd
    pid: int

    def processor_seconds(self) -> float:
        """Return the processor time of the process and all below it."""
        launcher = psutil.Process(self.pid)
        family = [launcher, *launcher.children(recursive=True)]
        return sum(sum(process.cpu_times()[:2]) for process in family)


class Rates(NamedTuple):
    """Tokens per second of prefill and of decode, and generated tokens per processor second
    of both together."""

    prefill: float
    decode: float
    per_processor_second: float


@contextmanager
def torch_engine() -> Iterator[Engine]:
    """The torch engine, ready for requests."""
    model = model_dir() if model_dir().exists() else fetch_checkpoint()
    with NativeFrontEnd() as front:
        process = subprocess.Popen(
            [sys.executable, "-m", "enginecore_torch", str(model), "--dtype", "bfloat16",
             "--max-model-len", "2048", "--data-parallel-rpc-port", str(front.port)],
            start_new_session=True,  # as vLLM: Linux shares processors between sessions
        )  # fmt: skip
        try:
            front.accept(SECONDS)
            yield Engine(front, process.pid)
        finally:
            process.terminate()
            process.wait()


@contextmanager
def vllm_engine() -> Iterator[Engine]:
    """Stock vLLM, ready for requests."""
    python = vllm_python()
    assert python is not None
    with NativeFrontEnd() as front:
        process = serve(python, model_dir(), front.port, "--max-model-len", "2048")
        try:
            front.accept(SECONDS)
            yield Engine(front, process.pid)
        finally:
            stop(process)


def measure(engine: Engine, batch: int, seed: int) -> Rates:
    """Compute `batch` requests together; decode counts from when every request has begun."""
    front = engine.front
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
    spent, started = engine.processor_seconds(), time.perf_counter()
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
    return Rates(
        batch * PROMPT_TOKENS / (begun - started),
        decoded / (ended - begun),
        batch * NEW_TOKENS / (engine.processor_seconds() - spent),
    )


def main() -> None:
    """Measure every batch size on every engine there is, in turns; print the best of each."""
    engines = {"torch": torch_engine}
    if vllm_python() is not None and model_dir().exists():
        engines["vllm"] = vllm_engine
    with ExitStack() as stack:
        ready = {name: stack.enter_context(make()) for name, make in engines.items()}
        for engine in ready.values():
            measure(engine, 2, seed=0)
        for batch in BATCHES:
            best = dict.fromkeys(ready, Rates(0.0, 0.0, 0.0))
            for turn in range(ROUNDS):
                for name, engine in ready.items():
                    found = measure(engine, batch, seed=1000 * batch + turn)
                    best[name] = Rates(*map(max, best[name], found))
            report(batch, best)


def report(batch: int, best: dict[str, Rates]) -> None:
    """Print the figures of one batch size, and the ratios if there is something to compare."""
    for name, rates in best.items():
        Measure(f"{name}: prefill, {batch} requests", rates.prefill, "tokens/s").print()
        Measure(f"{name}: decode, {batch} requests", rates.decode, "tokens/s").print()
    if "vllm" not in best:
        return
    ours, theirs = best["torch"], best["vllm"]
    for what, ratio in (
        ("decode speed", ours.decode / theirs.decode),
        ("tokens per processor time", ours.per_processor_second / theirs.per_processor_second),
    ):
        Measure(f"{what}, torch to vllm, {batch} requests", ratio, "x", 1.0, "at_least").print()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the engines are ended either way
    main()
