"""Directories of sockets: whose process was killed, the next launch removes."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from enginecore_client import AddressError
from enginecore_client._launch.socket_directory import SocketDirectory

MAKE_ONE = """
import sys
from enginecore_client._launch.socket_directory import SocketDirectory
directory = SocketDirectory()
print(directory.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@contextmanager
def owner(parent: Path) -> Iterator[tuple["subprocess.Popen[str]", Path]]:
    """Run a process that has a directory in `parent`, and give both."""
    with subprocess.Popen(
        [sys.executable, "-c", MAKE_ONE],
        env=os.environ | {"TMPDIR": str(parent)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())


def test_it_goes_with_its_owner(parent: Path) -> None:
    with owner(parent) as (process, path):
        assert path.is_dir()
        process.communicate("")
        assert process.returncode == 0
    assert list(parent.iterdir()) == []


def test_the_next_one_removes_what_a_killed_process_left(parent: Path) -> None:
    with owner(parent) as (killed, abandoned), owner(parent) as (_, used):
        killed.kill()
        killed.wait()
        (abandoned / "input").touch()
        mine = SocketDirectory()
        assert {Path(mine.path), used} == set(parent.iterdir())
        mine.remove()
        assert used.is_dir()


@pytest.mark.parametrize("name", ["enginecore-launch-1-x", "other"])
def test_what_has_no_lock_stays(parent: Path, name: str) -> None:
    (parent / name).mkdir()
    SocketDirectory().remove()
    assert [path.name for path in parent.iterdir()] == [name]


def test_a_fork_leaves_it_to_the_parent(parent: Path) -> None:
    mine = SocketDirectory()
    child = os.fork()
    if child == 0:
        mine.remove()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    SocketDirectory().remove()
    assert list(parent.iterdir()) == [Path(mine.path)]
    mine.remove()


def test_nowhere_to_write(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(parent / "absent"))
    with pytest.raises(AddressError, match="TMPDIR"):
        SocketDirectory()
