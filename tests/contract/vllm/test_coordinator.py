"""vLLM's own load-balancing front end takes its loads from our coordinator."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import zmq

import support
from support.coordination import coordinator_process, load_message
from support.eventually import eventually
from support.vllm_environment import RUN_VARIABLES, build_environment

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

SCRIPT = Path(support.__path__[0]) / "vllm_stats_client.py"


def test_vllm_front_end_prefers_the_engine_the_coordinator_calls_idle() -> None:
    python = build_environment()
    with (
        coordinator_process() as coordinator,
        zmq.Context() as context,
        context.socket(zmq.PUSH) as reports,
        subprocess.Popen(
            [str(python), str(SCRIPT), coordinator.publish_address, "2"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | RUN_VARIABLES,
        ) as front_end,
    ):
        reports.linger = 0
        reports.connect(coordinator.report_address)

        def say_next() -> int:
            """Have vLLM choose an engine; returns its rank."""
            assert front_end.stdin is not None
            front_end.stdin.write("next\n")
            front_end.stdin.flush()
            return int(read(front_end, "chosen")["chosen"])

        try:
            assert {say_next() for _ in range(4)} == {0, 1}, "it works without any report"
            for busy in (0, 1):
                loads = [[0, 0, 0.0], [0, 0, 0.0]]
                loads[busy] = [30, 60, 0.75]
                for rank, load in enumerate(loads):
                    reports.send(load_message(rank, *load))  # type: ignore[arg-type]
                while (line := read(front_end, "loads"))["loads"] != loads:
                    assert line["wave"] == 0
                    assert line["running"] is False
                assert [say_next() for _ in range(6)] == [1 - busy] * 6
            first_requests = "enginecore_coordinator_first_requests_total 16.0"
            eventually(lambda: first_requests in coordinator.get("/metrics"))
            assert "unknown_messages_total 0.0" in coordinator.get("/metrics")
        finally:
            front_end.kill()


def read(front_end: "subprocess.Popen[str]", key: str) -> dict[str, Any]:
    """Return the next line that has `key`."""
    assert front_end.stdout is not None
    for text in front_end.stdout:
        line: dict[str, Any] = json.loads(text)
        if key in line:
            return line
    raise AssertionError(f"the front end ended before it said {key}: {front_end.wait()}")
