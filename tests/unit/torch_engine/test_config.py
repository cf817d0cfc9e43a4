"""The command line, and what the settings make of model and machine."""

import os
from pathlib import Path
from typing import Any

import pytest

from enginecore_torch.build import EngineFacts, SettingsError, build_engine
from enginecore_torch.config import EngineConfig, parse_arguments
from enginecore_torch.processors import cgroup_quota, default_threads, usable_threads
from support.tiny_llama import write_tiny_llama

MAX_POSITIONS = 256
BLOCK_BYTES = 2 * 2 * 16 * 2 * 16 * 4  # layers, keys and values, tokens, heads, width, bytes


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("model"), MAX_POSITIONS)


def test_every_option_arrives() -> None:
    command = """
        /m.gguf --data-parallel-address 10.0.0.1 --data-parallel-rpc-port 1234
        --data-parallel-start-rank 2 --data-parallel-size 4 --local --max-model-len 100
        --max-num-seqs 3 --max-num-batched-tokens 50 --block-size 8 --max-logprobs -1
        --num-gpu-blocks-override 40 --kv-cache-bytes 99 --dtype bfloat16 --device cpu --seed 7
        --no-enable-prefix-caching --threads 1 --scheduling-policy priority --log-level debug
        --profile-dir /traces --shutdown-timeout 1.5 --handshake-timeout 9
    """
    engine, process, level = parse_arguments(command.split())
    assert engine == EngineConfig(
        model=Path("/m.gguf"), dtype="bfloat16", device="cpu", max_model_len=100, max_num_seqs=3,
        max_num_batched_tokens=50, max_logprobs=-1, block_size=8, num_blocks=40,
        kv_cache_bytes=99, prefix_caching=False, policy="priority", seed=7, threads=1,
        profile_dir=Path("/traces"),
    )  # fmt: skip
    assert (process.address, process.port, process.rank) == ("10.0.0.1", 1234, 2)
    assert (process.data_parallel_size, process.local) == (4, True)
    assert (process.shutdown_timeout, process.handshake_timeout) == (1.5, 9.0)
    assert level == "debug"


def test_defaults() -> None:
    engine, process, level = parse_arguments(["/m"])
    assert engine == EngineConfig(model=Path("/m"))
    assert (process.port, process.rank, process.data_parallel_size) == (29550, 0, 1)
    assert level == "info"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: model"),
        (["/m", "--dtype", "int8"], "--dtype: invalid choice: 'int8'"),
        (["/m", "--max-num-seqs", "0"], "--max-num-seqs: got 0, allowed: 1 to"),
        (["/m", "--data-parallel-rpc-port", "70000"], "got 70000, allowed: 1 to 65535"),
        (["/m", "--data-parallel-rank", "x"], "'x' is not an integer"),
        (["/m", "--shutdown-timeout", "nan"], "--shutdown-timeout: got nan, allowed: 0 or more"),
        (["/m", "--max-logprobs", "-2"], "--max-logprobs: got -2, allowed"),
        (["/m", "--data-parallel-rank", "2", "--data-parallel-size", "2"], "got 2, allowed"),
        (["/m", "--tensor-parallel-size", "2"], "unrecognized arguments"),
        (["/m", "--max-num"], "unrecognized arguments"),
    ],
)
def test_bad_arguments_are_named(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        parse_arguments(arguments)
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        ({}, {"max_model_len": 256, "num_blocks": 128 * 16 + 1, "dtype": "float32"}),
        ({"max_num_seqs": 2}, {"num_blocks": 2 * 16 + 1}),
        ({"max_model_len": 100, "max_num_seqs": 1}, {"max_model_len": 100, "num_blocks": 8}),
        ({"num_blocks": 5}, {"num_blocks": 5, "max_model_len": 64}),
        ({"kv_cache_bytes": 7 * BLOCK_BYTES}, {"num_blocks": 7, "max_model_len": 96}),
        (
            {"kv_cache_bytes": 7 * BLOCK_BYTES, "dtype": "bfloat16"},
            {"num_blocks": 14, "dtype": "bfloat16"},
        ),
    ],
    ids=str,
)
def test_sizes_follow_from_model_and_settings(
    model: Path, settings: dict[str, Any], facts: dict[str, Any]
) -> None:
    found = build_engine(EngineConfig(model=model, threads=1, **settings)).facts
    assert isinstance(found, EngineFacts)
    assert {name: getattr(found, name) for name in facts} == facts


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_model_len": 257}, "--max-model-len: got 257, allowed: at most 256"),
        ({"max_model_len": 256, "num_blocks": 5}, "256 tokens do not fit .* of 64 tokens; lower"),
        ({"num_blocks": 1}, "--num-gpu-blocks-override: got 1"),
        ({"kv_cache_bytes": BLOCK_BYTES}, f"--kv-cache-bytes: .* at least {2 * BLOCK_BYTES}"),
    ],
)
def test_settings_that_do_not_fit(model: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        build_engine(EngineConfig(model=model, threads=1, **settings))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path / "nothing", "is neither a directory"),
        (lambda path: path, "has no config.json"),
        (lambda path: _without_weights(path), "model.safetensors is missing"),
    ],
    ids=["no such path", "empty directory", "no weights"],
)
def test_a_model_that_is_not_there(tmp_path: Path, make: Any, message: str) -> None:
    with pytest.raises(FileNotFoundError, match=message):
        build_engine(EngineConfig(model=make(tmp_path), threads=1))


def _without_weights(path: Path) -> Path:
    (write_tiny_llama(path) / "model.safetensors").unlink()
    return path


@pytest.mark.parametrize(
    ("affinity", "quota", "threads"),
    [(8, None, 8), (8, 2.0, 2), (8, 1.5, 1), (8, 0.25, 1), (2, 4.0, 2)],
)
def test_usable_threads(affinity: int, quota: float | None, threads: int) -> None:
    assert usable_threads(affinity, quota) == threads


def test_omp_num_threads_decides() -> None:
    own = default_threads({})
    assert default_threads({"OMP_NUM_THREADS": "77"}) == 77
    assert default_threads({"OMP_NUM_THREADS": "4,2"}) == own
    assert 1 <= own <= len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 0.5),
        ({}, None),
    ],
    ids=["v2 free", "v2", "v1 free", "v1", "none"],
)
def test_cgroup_quota(tmp_path: Path, files: dict[str, str], quota: float | None) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cgroup_quota(tmp_path) == quota
