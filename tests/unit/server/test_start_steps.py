"""What an engine does while it loads, read from its log."""

import pytest

from enginecore_server.start_steps import STEPS, StartSteps

LOG = b"""\
INFO 11-30 22:10:01 [core.py:134] Initializing a V1 LLM engine (v0.32.0) with config: model='/m'
INFO 11-30 22:10:09 [gpu_model_runner.py:5040] Starting to load model /m...
\rLoading safetensors checkpoint shards:   0% Completed | 0/1 [00:00<?, ?it/s]\r
INFO 11-30 22:10:12 [default_loader.py:502] Loading weights took 2.10 seconds
INFO 11-30 22:10:12 [gpu_model_runner.py:5150] Model loading took 0.25 GiB memory and 2.9 seconds
INFO 11-30 22:10:20 [backends.py:900] Dynamo bytecode transform time: 7.41 s
INFO 11-30 22:10:40 [gpu_worker.py:760] Available KV cache memory: 60.31 GiB
INFO 11-30 22:10:40 [kv_cache_utils.py:2000] GPU KV cache size: 1,405,312 tokens
\rCapturing CUDA graphs (decode, FULL):   3%|3 | 1/35"""


@pytest.mark.parametrize("size", [1, 7, 64, 100_000])
def test_the_steps_of_a_start_however_its_log_is_cut(size: int) -> None:
    steps = StartSteps()
    chunks = [LOG[start : start + size] for start in range(0, len(LOG), size)]
    seen = [step for chunk in chunks if (step := steps.feed(chunk)) is not None]
    assert seen == (list(STEPS) if size < 100 else [STEPS[-1]])


def test_no_step_is_told_twice_or_after_a_later_one() -> None:
    steps = StartSteps()
    assert steps.feed(b"Model loading took 1 GiB") is STEPS[2]
    assert steps.feed(b"Model loading took 1 GiB") is None
    assert steps.feed(b"Starting to load model /m...") is None
    assert steps.feed(b"any other engine's words") is None
