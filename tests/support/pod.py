"""Pods on this host (the public package's) with the stub engine or the torch engine in them."""

import sys
from pathlib import Path
from typing import Any

from enginecore_client.testing._pod import (
    DRAIN_TOKEN,
    LOOPBACK,
    QUICK,
    Pod,
    alive,
    client_addresses,
    descendants,
)
from enginecore_wire.contract import ModelConfig, RuntimeConfig, ServerConfig

__all__ = [
    "DRAIN_TOKEN",
    "LOOPBACK",
    "STUB_ENGINE",
    "Pod",
    "alive",
    "client_addresses",
    "descendants",
    "stub_config",
    "torch_config",
]

STUB_ENGINE = Path(__file__).with_name("stub_engine.py")


def stub_config(*options: str, **fields: Any) -> ServerConfig:
    """Return settings of a server with the stub engine; `options` are the stub's."""
    command = [
        sys.executable, str(STUB_ENGINE), "--data-parallel-address", "127.0.0.1",
        "--data-parallel-rpc-port", "$(ENGINECORE_HANDSHAKE_PORT)", *options,
    ]  # fmt: skip
    return _config(
        ModelConfig(path="stub", served_name="stub", vocab_size=1000),
        RuntimeConfig(type="custom", command=command),
        **fields,
    )


def torch_config(model: Path, *options: str, **fields: Any) -> ServerConfig:
    """Return settings of a server with the torch engine; `options` are the engine's."""
    runtime = RuntimeConfig(type="torch", args=list(options))
    return _config(ModelConfig(path=str(model), served_name=model.name), runtime, **fields)


def _config(model: ModelConfig, runtime: RuntimeConfig, **fields: Any) -> ServerConfig:
    rank = fields.pop("rank", 0)
    defaults: dict[str, Any] = {"name": f"engine-{rank}", "transport": LOOPBACK, "liveness": QUICK}
    return ServerConfig(model=model, runtime=runtime, rank=rank, **(defaults | fields))
