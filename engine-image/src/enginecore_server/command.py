"""The command line and environment of the engine behind the server."""

import sys
from collections.abc import Mapping

from enginecore_wire.contract import (
    CONFIG_ENV,
    DRAIN_TOKEN_ENV,
    HANDSHAKE_ADDRESS_ENV,
    HANDSHAKE_PORT_ENV,
    ServerConfig,
)

HANDSHAKE_HOST = "127.0.0.1"


def engine_command(config: ServerConfig, port: int) -> list[str]:
    """Return the engine's command line; `port` is the handshake's."""
    runtime, model = config.runtime, config.model
    dial = ["--data-parallel-address", HANDSHAKE_HOST, "--data-parallel-rpc-port", str(port)]
    if runtime.type == "torch":
        command = [sys.executable, "-m", "enginecore_torch", model.path, *dial]
    elif runtime.type == "vllm":
        command = ["vllm", "serve", model.path, "--headless", *dial]
    else:
        command = list(runtime.command)
    variables = handshake_variables(port)
    return [_expand(item, variables) for item in [*command, *runtime.args]]


def engine_environment(inherited: Mapping[str, str], port: int) -> dict[str, str]:
    """Return the engine's environment: the server's without its own settings and secrets,
    with the handshake's place added."""
    kept = {
        name: value
        for name, value in inherited.items()
        if name not in (CONFIG_ENV, DRAIN_TOKEN_ENV)
    }
    return kept | handshake_variables(port)


def handshake_variables(port: int) -> dict[str, str]:
    """Return the variables that tell an engine where to say HELLO."""
    return {
        HANDSHAKE_ADDRESS_ENV: f"tcp://{HANDSHAKE_HOST}:{port}",
        HANDSHAKE_PORT_ENV: str(port),
    }


def _expand(item: str, variables: Mapping[str, str]) -> str:
    for name, value in variables.items():
        item = item.replace(f"$({name})", value)
    return item
