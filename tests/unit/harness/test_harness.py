"""The test harness itself: pytest runs small files under this repository's conftest."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]

LEAKS = {
    "thread": "import threading\ndef test_it():\n"
    "    threading.Thread(target=threading.Event().wait, daemon=True).start()\n",
    "socket": "import socket\nkept = []\ndef test_it():\n    kept.append(socket.socket())\n",
    "zmq_socket": "import zmq\nkept = []\ndef test_it():\n"
    "    kept.append(zmq.Context().socket(zmq.PULL))\n",
    "child": "import subprocess\nkept = []\ndef test_it():\n"
    "    kept.append(subprocess.Popen(['sleep', '3']))\n",
    "orphan": "import subprocess\ndef test_it():\n    subprocess.run(['sh', '-c', "
    "'sleep 3 >/dev/null 2>&1 &'], check=True)\n",
}
CLEAN = (
    "import asyncio, subprocess, threading, zmq\n"
    "async def test_loop():\n    await asyncio.to_thread(int)\n"
    "def test_ends():\n"
    "    thread = threading.Thread(target=int)\n    thread.start()\n    thread.join()\n"
    "    subprocess.run(['true'], check=True)\n"
    "    with zmq.Context() as context, context.socket(zmq.PULL) as socket:\n"
    "        socket.bind('tcp://127.0.0.1:*')\n"
)
SKIP = "import pytest\n@pytest.mark.skip(reason='no such thing')\ndef test_it():\n    pass\n"
SKIPPED_FILE = "import pytest\npytest.skip('nothing here', allow_module_level=True)\n"
TIERED = "import pytest\n@pytest.mark.api\ndef test_it():\n    pass\n"
COUNTED = (
    "import pytest\n@pytest.mark.counted(short=2, full=5)\ndef test_it(counted):\n"
    "    assert counted == 5\n"
)
HANGING = (
    "import pytest, threading\n@pytest.mark.timeout(0.5)\ndef test_it():\n"
    "    threading.Event().wait(30)\n"
)


def run(
    tmp_path: Path, source: str | dict[str, str], *options: str, skips: str = "", **env: str
) -> tuple[int, str]:
    """Run pytest on one file (or several, by name) in a directory of its own; returns the exit
    code and the output."""
    shutil.copy(TESTS / "conftest.py", tmp_path)
    shutil.copytree(
        TESTS / "support", tmp_path / "support", ignore=shutil.ignore_patterns("__pycache__")
    )
    leaks = tmp_path / "support" / "leaks.py"
    leaks.write_text(leaks.read_text().replace("SETTLE_SECONDS = 3.0", "SETTLE_SECONDS = 0.2"))
    config = (TESTS.parent / "pyproject.toml").read_text()
    config = config.replace('pythonpath = ["tests"]', f'pythonpath = [".", "{TESTS}"]')
    (tmp_path / "pyproject.toml").write_text(config.replace('testpaths = ["tests"]', ""))
    (tmp_path / "skips.toml").write_text(skips)
    files = {"case": source} if isinstance(source, str) else source
    for name, text in files.items():
        (tmp_path / f"test_{name}.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options],
        cwd=tmp_path,
        env={key: value for key, value in os.environ.items() if key != "CI"} | env,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_each_leak_fails_its_test_and_clean_ones_pass(tmp_path: Path) -> None:
    code, output = run(tmp_path, LEAKS | {"clean": CLEAN})
    assert code == 1, output
    found = set(re.findall(r"^ERROR test_(\w+)\.py::test_it - Failed: left behind", output, re.M))
    assert found == set(LEAKS), output
    assert "test_clean" not in output


def test_leak_with_a_reason_passes(tmp_path: Path) -> None:
    mark = "import pytest\npytestmark = pytest.mark.may_leak('sockets', reason='shown')\n"
    assert run(tmp_path, mark + LEAKS["socket"])[0] == 0


@pytest.mark.parametrize(
    ("source", "skips", "ci", "code"),
    [
        (SKIP, "", "", 0),
        (SKIP, "", "true", 1),
        (SKIP, '[[skip]]\ntest = "test_case.py::test_*"\nreason = "shown"\n', "true", 0),
        (SKIP, '[[skip]]\ntest = "other.py::*"\nreason = "shown"\n', "true", 1),
        (SKIPPED_FILE, "", "true", 2),
    ],
    ids=["own machine", "no reason", "reason", "reason of another test", "whole file"],
)
def test_skip_in_ci_needs_a_reason(
    source: str, skips: str, ci: str, code: int, tmp_path: Path
) -> None:
    got, output = run(tmp_path, source, skips=skips, CI=ci)
    assert got == code, output


@pytest.mark.parametrize(
    ("options", "line"), [((), "1 deselected"), (("--tier", "api"), "1 passed")]
)
def test_tier_runs_only_when_asked_for(options: tuple[str, ...], line: str, tmp_path: Path) -> None:
    assert line in run(tmp_path, TIERED, *options)[1]


@pytest.mark.parametrize(
    ("options", "line"), [((), "assert 2 == 5"), (("--full-counts",), "1 passed")]
)
def test_full_counts_only_when_asked_for(
    options: tuple[str, ...], line: str, tmp_path: Path
) -> None:
    assert line in run(tmp_path, COUNTED, *options)[1]


def test_a_count_without_its_marker_fails(tmp_path: Path) -> None:
    code, output = run(tmp_path, COUNTED.replace("short=2, ", ""), "--full-counts")
    assert code == 1
    assert "needs the marker counted(short=…, full=…)" in output


def test_hanging_test_is_ended_with_its_stack(tmp_path: Path) -> None:
    code, output = run(tmp_path, HANGING)
    assert code != 0
    assert "Timeout" in output
    assert "threading.Event().wait(30)" in output
