"""Thousands of requests that end in every way there is leave nothing behind."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from support import request_fates
from support.request_fates import Left

REQUESTS = 10_000
GROWTH_BYTES = 4 << 20
"""What a process may hold more after all requests than after a fifth of them."""

ENDS = {"read", "leave", "abort", "drop", "timeout", "refused", "stopped", "queued", "called"}


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("client", "ends"), [("async", {*ENDS, "cancel", "too many"}), ("sync", ENDS)]
)
def test_nothing_is_left(client: str, ends: set[str]) -> None:
    command = [sys.executable, "-m", request_fates.__name__, client, str(REQUESTS)]
    tests = Path(__file__).parents[2]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": str(tests)}, stdout=subprocess.PIPE, check=True
    )
    left = msgspec.json.decode(done.stdout, type=Left)
    assert left.ends >= ends
    assert left.grown < GROWTH_BYTES
