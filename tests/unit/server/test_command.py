"""The engine's command line and environment."""

import sys
from typing import Any

import pytest

from enginecore_server.command import engine_command, engine_environment
from enginecore_wire.contract import CONFIG_ENV, DRAIN_TOKEN_ENV, ModelConfig, ServerConfig
from enginecore_wire.contract import RuntimeConfig as Runtime

DIAL = ["--data-parallel-address", "127.0.0.1", "--data-parallel-rpc-port", "4242"]


@pytest.mark.parametrize(
    ("runtime", "command"),
    [
        (
            Runtime(args=["--threads", "2"]),
            [sys.executable, "-m", "enginecore_torch", "/m", *DIAL, "--threads", "2"],
        ),
        (
            Runtime(type="vllm", args=["--dtype", "float32"]),
            ["vllm", "serve", "/m", "--headless", *DIAL, "--dtype", "float32"],
        ),
        (
            Runtime(
                type="custom",
                command=["run", "--at=$(ENGINECORE_HANDSHAKE_ADDRESS)"],
                args=["$(ENGINECORE_HANDSHAKE_PORT)", "$(OTHER)"],
            ),
            ["run", "--at=tcp://127.0.0.1:4242", "4242", "$(OTHER)"],
        ),
    ],
    ids=["torch", "vllm", "custom"],
)
def test_command_of_each_runtime(runtime: Runtime, command: list[str]) -> None:
    config = ServerConfig(name="n", model=ModelConfig("/m"), runtime=runtime)
    assert engine_command(config, 4242) == command


def test_the_engine_gets_the_handshake_and_no_secrets() -> None:
    inherited: dict[str, Any] = {"PATH": "/bin", CONFIG_ENV: "{}", DRAIN_TOKEN_ENV: "secret"}
    assert engine_environment(inherited, 7) == {
        "PATH": "/bin",
        "ENGINECORE_HANDSHAKE_ADDRESS": "tcp://127.0.0.1:7",
        "ENGINECORE_HANDSHAKE_PORT": "7",
    }
