"""The suite as third parties run it: by command, on an engine or a client of their own."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from enginecore_client.testing import FakeEngine

FAKE = " ".join(FakeEngine.command("--token-seconds", "0.001").command)
SOME = "TestSyncMPClient and bind and (stream_comes_whole or abort_ends_a_stream or wrong_calls)"

SILENT = '''
from enginecore_client import SyncMPClient

class Careless(SyncMPClient):
    def abort_requests(self, request_ids):
        """Do nothing."""
'''


def run(*arguments: str, cwd: Path) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "enginecore_client.testing", "-q", "--tb=no", *arguments],
        cwd=cwd, capture_output=True, text=True, timeout=150, check=False,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(cwd), "COLUMNS": "300"},
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_an_engine_that_does_what_it_should(tmp_path: Path) -> None:
    code, output = run("--engine-command", FAKE, "--engine-local", "--engine-vocab-size", "1000",
                       "-k", SOME, cwd=tmp_path)  # fmt: skip
    assert code == 0, output
    assert "3 passed" in output


def test_an_engine_that_does_not(tmp_path: Path) -> None:
    code, output = run("--engine-command", f"{FAKE} --tokens 10", "--engine-local", "-k", SOME,
                       cwd=tmp_path)  # fmt: skip
    assert code == 1, output
    failed = set(re.findall(r"test_together\[(\w+)\]", output))
    assert "stream_comes_whole" in failed
    assert "wrong_calls" not in failed


def test_a_client_that_does_not(tmp_path: Path) -> None:
    (tmp_path / "careless.py").write_text(SILENT)
    code, output = run("--client-class", "SyncMPClient=careless:Careless", "-k", SOME, cwd=tmp_path)
    assert code == 1, output
    assert set(re.findall(r"test_together\[(\w+)\]", output)) >= {"abort_ends_a_stream"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--engine-command", "my-engine"), "has no {port}"),
        (("--client-class", "Nobody=a:B"), "allowed: NAME=MODULE:CLASS with one of InprocClient"),
        (("--client-class", "SyncMPClient=no.such.module:B"), "No module named 'no'"),
        (("--client-class", "SyncMPClient=enginecore_client:B"), "has no attribute 'B'"),
        (("--engine-trait", "obeys"), "invalid choice: 'obeys'"),
    ],
)
def test_wrong_options(arguments: tuple[str, ...], words: str, tmp_path: Path) -> None:
    code, output = run(*arguments, cwd=tmp_path)
    assert code == 4, output
    assert words in output
