"""The engines of this project, as the contract suite has to know them."""

import tempfile
from functools import cache
from pathlib import Path

from enginecore_client import EngineCommand
from enginecore_client.testing.cells import TORCH
from enginecore_client.testing.engines import EngineUnderTest, Trait
from enginecore_wire.contract import ServerConfig
from enginecore_wire.engine import EngineLike
from support.pod import torch_config
from support.tiny_llama import VOCAB_SIZE, write_tiny_llama

CACHE_BYTES = 8 << 20
MOST_SEQUENCES = 64
OPTIONS = (
    "--kv-cache-bytes", str(CACHE_BYTES), "--threads", "1", "--max-num-seqs", str(MOST_SEQUENCES),
    "--device", "cpu", "--log-level", "warning",
)  # fmt: skip


@cache
def tiny_model() -> Path:
    """Return a model that every engine of this session loads."""
    directory = tempfile.TemporaryDirectory(prefix="contract-model-")
    _KEPT.append(directory)
    return write_tiny_llama(Path(directory.name) / "tiny-llama")


def torch_under_test() -> EngineUnderTest:
    """Return the torch engine over the tiny model."""

    def make() -> EngineLike:
        from enginecore_torch.build import build_engine  # noqa: PLC0415 - takes seconds
        from enginecore_torch.config import EngineConfig  # noqa: PLC0415

        config = EngineConfig(
            model=tiny_model(),
            kv_cache_bytes=CACHE_BYTES,
            max_num_seqs=MOST_SEQUENCES,
            threads=1,
            device="cpu",
        )
        return build_engine(config).core

    def server(rank: int) -> ServerConfig:
        return torch_config(tiny_model(), *OPTIONS, rank=rank)

    return EngineUnderTest(
        name=TORCH,
        command=EngineCommand.torch(str(tiny_model()), *OPTIONS),
        make_core=make,
        server=server,
        broken=EngineCommand.torch("/nowhere/at/all", "--log-level", "warning"),
        vocab_size=VOCAB_SIZE,
        long_tokens=1500,
        traits=frozenset({Trait.REPEATABLE, Trait.REPEATS_TRACE}),
    )


_KEPT: list["tempfile.TemporaryDirectory[str]"] = []
