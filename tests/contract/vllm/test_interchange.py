"""vLLM's LLMEngine and AsyncLLM answer the same with our clients as with their own."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

import enginecore_client
import support
from support.vllm_engines import ENVIRONMENT, EngineRoom, EngineSet

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(2 * 900),
    pytest.mark.may_leak("processes", "threads", "sockets", reason="engines are shared"),
]

SCRIPT = Path(support.__path__[0]) / "vllm_interchange.py"
TIMEOUT = 900
"""It starts three engines, one after another."""
PATHS = [Path(enginecore_client.__path__[0]).parent, SCRIPT.parents[1]]


def answers(room: EngineRoom, wanted: str) -> dict[str, Any]:
    """Run the script in vLLM's environment; return what it printed."""
    done = subprocess.run(
        [str(room.python), str(SCRIPT), str(room.model), wanted],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        env=os.environ | ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(map(str, PATHS))},
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.fixture(scope="session")
def own(room: EngineRoom) -> dict[str, Any]:
    """What they say with vLLM's own clients, each in front of an engine that it starts."""
    return answers(room, "own")


def test_same_answers_with_our_clients(
    room: EngineRoom, engines: EngineSet, own: dict[str, Any]
) -> None:
    options = {"LLMEngine": engines.options(0), "AsyncLLM": engines.options(1)}
    ours = answers(room, json.dumps(options))
    assert list(ours) == ["LLMEngine", "AsyncLLM", "in process"]
    for engine, said in ours.items():
        assert said == own[engine], engine
    count = sum(
        len(each["tokens"])
        for said in ours.values()
        for answer in said.values()
        if isinstance(answer, dict)
        for each in answer["outputs"]
    )
    print(f"{count} tokens are the same as with vLLM's own clients")


def test_what_was_compared_is_worth_it(own: dict[str, Any]) -> None:
    blocking, awaited = own["LLMEngine"], own["AsyncLLM"]
    assert blocking == own["in process"]
    assert blocking["outputs before the abort"] < 20
    assert awaited["paused"] is awaited["resumed"] is True
    assert all(answer["streamed"] for answer in awaited.values() if isinstance(answer, dict))
    assert [each["index"] for each in blocking["two"]["outputs"]] == [0, 1]
    assert blocking["stop string"]["outputs"][0]["stop_reason"] == "answer"
    for number in range(6):
        name = f"greedy {number}"
        assert blocking[name]["outputs"][0]["tokens"] == awaited[name]["outputs"][0]["tokens"]
