"""What the benchmark against vLLM's client consists of runs, as far as it needs no vLLM."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.stream_commands import Adds, Command, Flood, Paced, Trips
from support.stream_processes import StreamProcesses


@pytest.fixture(scope="module")
def processes() -> Iterator[StreamProcesses]:
    with StreamProcesses(Path(sys.executable), ("ours", "trusting", "bare")) as started:
        yield started


@pytest.mark.parametrize(
    ("kind", "command"),
    [
        ("ours", Flood(1, 50)),
        ("ours", Flood(5, 20)),
        ("ours", Paced(2, 5, 0.001)),
        ("ours", Adds(10)),
        ("ours", Trips(10)),
        ("trusting", Adds(10)),
        ("bare", Flood(3, 7)),
    ],
    ids=lambda each: each if isinstance(each, str) else type(each).__name__,
)
def test_commands_are_carried_out_again_and_again(
    processes: StreamProcesses, kind: str, command: Command
) -> None:
    for _ in range(2):
        took = processes.ask(kind, command)
        assert took.wall > 0
        assert took.peak > 1 << 20
        if isinstance(command, Trips):
            assert 0 < took.p50 <= took.p99
