"""Settings of an engine process and how the command line spells them (vLLM's spelling)."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from enginecore_torch.scheduler import Policy

DTYPES = ("auto", "float32", "bfloat16", "float16")
DEVICES = ("auto", "cpu", "cuda")
DEFAULT_PORT = 29550


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What an engine computes and how much it may take.

    `max_model_len`, `num_blocks`, `kv_cache_bytes` and `threads` of None are derived from the
    model and the machine; `dtype` auto is float32 on a CPU and the checkpoint's own on a GPU.
    `seed` is for requests that bring none of their own.
    """

    model: Path
    dtype: str = "auto"
    device: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 128
    max_num_batched_tokens: int = 2048
    max_logprobs: int = 20
    block_size: int = 16
    num_blocks: int | None = None
    kv_cache_bytes: int | None = None
    prefix_caching: bool = True
    policy: Policy = "fcfs"
    seed: int = 0
    threads: int | None = None
    profile_dir: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessConfig:
    """Who the engine process is and where its handshake is answered.

    With `shutdown_timeout` (seconds) above 0 requests may go on that long after SIGTERM.
    """

    address: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    rank: int = 0
    data_parallel_size: int = 1
    local: bool = False
    shutdown_timeout: float = 0.0
    handshake_timeout: float = 300.0


def parse_arguments(argv: Sequence[str]) -> tuple[EngineConfig, ProcessConfig, str]:
    """Return the settings in `argv` (without the program's name) and the log level.

    Exits with code 2 and a message that names the option if a value is not acceptable.
    """
    parser = _parser()
    options = parser.parse_args(argv)
    ranks = options.data_parallel_size
    if ranks is not None and options.rank >= ranks:
        parser.error(f"--data-parallel-rank: got {options.rank}, allowed: 0 to {ranks - 1}")
    if options.max_logprobs < -1:
        parser.error(f"--max-logprobs: got {options.max_logprobs}, allowed: 0 or more, or -1")
    engine = EngineConfig(
        model=options.model,
        dtype=options.dtype,
        device=options.device,
        max_model_len=options.max_model_len,
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        max_logprobs=options.max_logprobs,
        block_size=options.block_size,
        num_blocks=options.num_gpu_blocks_override,
        kv_cache_bytes=options.kv_cache_bytes,
        prefix_caching=options.enable_prefix_caching,
        policy=options.scheduling_policy,
        seed=options.seed,
        threads=options.threads,
        profile_dir=options.profile_dir,
    )
    process = ProcessConfig(
        address=options.data_parallel_address,
        port=options.data_parallel_rpc_port,
        rank=options.rank,
        data_parallel_size=ranks or 1,
        local=options.local,
        shutdown_timeout=options.shutdown_timeout,
        handshake_timeout=options.handshake_timeout,
    )
    return engine, process, options.log_level


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="enginecore-torch",
        description="One EngineCore process on PyTorch; dials vLLM's handshake.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("model", type=Path, help="directory with config.json and safetensors, or a .gguf file")
    _add_process_options(parser)
    _add_memory_options(parser)
    add("--dtype", choices=DTYPES, default="auto", help="what to compute in")
    add("--device", choices=DEVICES, default="auto", help="where to compute")
    add("--max-num-seqs", type=_positive, default=128, metavar="N", help="sequences that run")
    add("--max-num-batched-tokens", type=_positive, default=2048, metavar="N",
        help="tokens computed per step")  # fmt: skip
    add("--max-logprobs", type=int, default=20, metavar="N",
        help="log-probabilities a request may ask for; -1 for no bound")  # fmt: skip
    add("--scheduling-policy", choices=("fcfs", "priority"), default="fcfs", help="who goes first")
    add("--seed", type=int, default=0, help="of requests without a seed")
    add(
        "--threads",
        type=_positive,
        default=None,
        metavar="N",
        help="CPU threads; default: what the process may use",
    )
    add("--profile-dir", type=Path, default=None, metavar="DIR", help="where `profile` writes")
    add("--log-level", choices=("debug", "info", "warning", "error"), default="info",
        help="least severity that is logged")  # fmt: skip
    return parser


def _add_process_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--data-parallel-address", default="127.0.0.1", metavar="IP", help="of the handshake")
    add("--data-parallel-rpc-port", type=_port, default=DEFAULT_PORT, metavar="PORT",
        help="of the handshake")  # fmt: skip
    add("--data-parallel-rank", "--data-parallel-start-rank", dest="rank", type=_rank, default=0,
        metavar="N", help="this engine's rank")  # fmt: skip
    add("--data-parallel-size", type=_positive, default=None, metavar="N", help="ranks in all")
    add("--local", action=argparse.BooleanOptionalAction, default=False,
        help="say that engine and front end share a machine and a launcher")  # fmt: skip
    add("--shutdown-timeout", type=_seconds, default=0.0, metavar="S",
        help="seconds that requests may go on after SIGTERM")  # fmt: skip
    add("--handshake-timeout", type=_seconds, default=300.0, metavar="S",
        help="seconds to wait for the answer to HELLO")  # fmt: skip


def _add_memory_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--max-model-len", type=_positive, default=None, metavar="N",
        help="longest sequence in tokens")  # fmt: skip
    add("--block-size", type=_positive, default=16, metavar="N", help="tokens per KV block")
    add("--num-gpu-blocks-override", type=_positive, default=None, metavar="N",
        help="KV blocks, whatever --kv-cache-bytes says")  # fmt: skip
    add("--kv-cache-bytes", type=_positive, default=None, metavar="N", help="size of the KV cache")
    add("--enable-prefix-caching", action=argparse.BooleanOptionalAction, default=True,
        help="reuse the KV blocks of equal beginnings")  # fmt: skip


def _positive(text: str) -> int:
    return _integer(text, 1, 2**62)


def _port(text: str) -> int:
    return _integer(text, 1, 65535)


def _rank(text: str) -> int:
    return _integer(text, 0, 65535)


def _integer(text: str, low: int, high: int) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer") from None
    if not low <= value <= high:
        raise argparse.ArgumentTypeError(f"got {value}, allowed: {low} to {high}")
    return value


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"got {value}, allowed: 0 or more")
    return value
