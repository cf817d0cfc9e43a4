"""The demo as a user runs it: from nothing to tokens, and back to nothing."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from devcluster import cluster, state
from devcluster.locations import Locations
from support.host_traces import HostTraces

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.model,
    pytest.mark.exclusive_node,
    pytest.mark.timeout(600),
]

ROOT = Path(__file__).resolve().parents[2]
RUN_NAME = "demo"
ENGINES = {"0", "1"}
PROMPTS = 8
METRICS = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "enginecore_client_requests_total",
    "enginecore_client_generation_tokens_total",
    "enginecore_client_time_to_first_token_seconds_count",
    "enginecore_client_time_to_first_token_seconds_sum",
)
TABLE = (
    r"^NAME +MODEL +RUNTIME +DESIRED +READY +AVAILABLE +AGE$",
    r"^enginecluster\.enginecore\.dev/smollm2 .* 2 +2 +True ",
    r"^enginecore\.enginecore\.dev/smollm2-0 +0 +Ready +True +1 +0 ",
    r"^enginecore\.enginecore\.dev/smollm2-1 +1 +Ready +True +1 +0 ",
    r"^pod/smollm2-0-1 +1/1 +Running ",
    r"^pod/smollm2-1-1 +1/1 +Running ",
)

RunPython = Callable[..., str]


@pytest.fixture
def run_python(tmp_path: Path) -> RunPython:
    """Return a function that runs Python as `make` does, with a state directory of its own."""
    environ = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"}
    environ |= {"XDG_STATE_HOME": str(tmp_path), "PYTHONPATH": "tests"}

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=ROOT,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    return run


@pytest.fixture
def locations(tmp_path: Path) -> Iterator[Locations]:
    """The same directories; a demo that failed half-way goes down."""
    found = Locations.from_environment(os.environ | {"XDG_STATE_HOME": str(tmp_path)})
    yield found
    cluster.down(RUN_NAME, found, print)


def series(text: str, metric: str) -> dict[str, float]:
    """Return engine → sum of the values of a metric."""
    found: dict[str, float] = {}
    pattern = rf'^ *{metric}{{.*engine="(\d+)".*}} (\S+)$'
    for engine, value in re.findall(pattern, text, re.MULTILINE):
        found[engine] = found.get(engine, 0.0) + float(value)
    return found


def test_up_shows_tokens_and_stays_up_down_leaves_nothing(
    run_python: RunPython, locations: Locations
) -> None:
    before = HostTraces.of(locations.run(RUN_NAME))
    text = run_python("examples/demo", "up")

    answer = " ".join(re.findall(r"^ *1 on engine \d │ (.*)$", text, re.MULTILINE))
    assert "Paris" in answer
    assert set(re.findall(r"^ *engine (\d+): tcp://", text, re.MULTILINE)) == ENGINES
    assert set(re.findall(r"^ *\d on engine (\d+) │", text, re.MULTILINE)) == ENGINES
    assert len(re.findall(r"^ *\d .* \d+ ms +[\d.]+ s$", text, re.MULTILINE)) == PROMPTS
    shown = {metric: series(text, metric) for metric in METRICS}
    assert {metric: engines.keys() for metric, engines in shown.items()} == dict.fromkeys(
        METRICS, ENGINES
    )
    assert sum(shown["enginecore_client_requests_total"].values()) == PROMPTS
    assert [row for row in TABLE if not re.search(row, text, re.MULTILINE)] == []
    assert "it stays up" in text
    assert f"{RUN_NAME}: tier node, {state.Verdict.RUNNING}, " in run_python(
        "-m", "devcluster", "status"
    )

    run_python("examples/demo", "down")
    assert run_python("-m", "devcluster", "status") == ""
    assert HostTraces.of(locations.run(RUN_NAME)) == before
