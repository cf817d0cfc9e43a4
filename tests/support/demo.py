"""The demo as a user runs it, and what it has to show."""

import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
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


@dataclass(frozen=True)
class Demo:
    """Runs the demo's verbs, and the dev cluster's, as `make` does.

    Attributes:
        environ: the environment, without PYTHONPATH.
    """

    environ: Mapping[str, str]

    def up(self) -> str:
        """Bring it up; return what it prints."""
        return self._python("examples/demo", "up")

    def down(self) -> str:
        """Take it down; return what it prints."""
        return self._python("examples/demo", "down")

    def clusters(self) -> str:
        """Return the status of the dev clusters it may know of."""
        return self._python("-m", "devcluster", "status")

    def _python(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=ROOT,
            env={**self.environ, "PYTHONPATH": "tests"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout


def assert_shows_tokens(text: str) -> None:
    """Hold the output of `up` to what it promises: answers, times, metrics, objects."""
    answer = " ".join(re.findall(r"^ *1 on engine \d │ (.*)$", text, re.MULTILINE))
    assert "Paris" in answer
    assert set(re.findall(r"^ *engine (\d+): tcp://", text, re.MULTILINE)) == ENGINES
    assert set(re.findall(r"^ *\d on engine (\d+) │", text, re.MULTILINE)) == ENGINES
    assert len(re.findall(r"^ *\d .* \d+ ms +[\d.]+ s$", text, re.MULTILINE)) == PROMPTS
    shown = {metric: _series(text, metric) for metric in METRICS}
    assert {metric: engines.keys() for metric, engines in shown.items()} == dict.fromkeys(
        METRICS, ENGINES
    )
    assert sum(shown["enginecore_client_requests_total"].values()) == PROMPTS
    assert [row for row in TABLE if not re.search(row, text, re.MULTILINE)] == []
    assert "it stays up" in text


def _series(text: str, metric: str) -> dict[str, float]:
    """Return engine → sum of the values of a metric."""
    found: dict[str, float] = {}
    pattern = rf'^ *{metric}{{.*engine="(\d+)".*}} (\S+)$'
    for engine, value in re.findall(pattern, text, re.MULTILINE):
        found[engine] = found.get(engine, 0.0) + float(value)
    return found
