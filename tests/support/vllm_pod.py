"""EngineCore pods with a real vLLM behind the engine server."""

import os
from collections.abc import Mapping
from pathlib import Path

from enginecore_wire.contract import LivenessConfig, ModelConfig, RuntimeConfig, ServerConfig
from support.pod import LOOPBACK, Pod
from support.vllm_environment import RUN_VARIABLES

START_SECONDS = 600.0
PATIENT = LivenessConfig(grace_seconds=1.0)
ENGINE_TITLE = b"EngineCore"
"""Part of the name that vLLM gives the process of its engine."""


def vllm_pod(
    python: Path,
    model: Path,
    *options: str,
    rank: int = 0,
    env: Mapping[str, str] = RUN_VARIABLES,
) -> Pod:
    """Start an engine server with `vllm serve --headless` as its engine.

    Args:
        python: of vLLM's environment.
        model: what to load.
        options: more arguments of `vllm serve`.
        rank: the pod's rank among those that a client uses.
        env: variables beside those of this process.
    """
    config = ServerConfig(
        name=f"vllm-{rank}",
        model=ModelConfig(path=str(model), served_name=model.name),
        runtime=RuntimeConfig(type="vllm", args=list(options)),
        rank=rank,
        transport=LOOPBACK,
        liveness=PATIENT,
    )
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    return Pod(config, **{"PATH": path, **env})


def wait_ready(pod: Pod) -> None:
    """Return once the engine is ready; whatever is raised shows the end of the pod's log."""
    try:
        pod.wait_ready(START_SECONDS)
    except Exception as error:
        error.add_note(pod.tail())
        raise


def engine_process(pids: list[int]) -> int:
    """Return which of these processes is vLLM's engine, and not its launcher.

    Raises:
        AssertionError: none of them, or several, are.
    """
    engines = [pid for pid in pids if ENGINE_TITLE in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert len(engines) == 1, engines
    return engines[0]
