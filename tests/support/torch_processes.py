"""Torch engines as processes that dial a front end of vLLM's native protocol."""

import sys
from pathlib import Path

from support.process import Process


def torch_engine(model: Path, port: int, rank: int, ranks: int, *options: str) -> Process:
    """Start the torch engine of one rank.

    Args:
        model: what to load.
        port: of the front end's handshake, on loopback.
        rank: the engine's data-parallel rank.
        ranks: how many there are.
        options: more arguments of the engine.
    """
    command = [
        sys.executable, "-m", "enginecore_torch", str(model),
        "--data-parallel-address", "127.0.0.1", "--data-parallel-rpc-port", str(port),
        "--data-parallel-rank", str(rank), "--data-parallel-size", str(ranks), *options,
    ]  # fmt: skip
    return Process(command, f"torch engine {rank} log")
