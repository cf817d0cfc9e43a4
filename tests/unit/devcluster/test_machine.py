"""One node per machine: dead holders are ended, live ones are waited for."""

from pathlib import Path

import pytest

from devcluster import machine
from devcluster.errors import DevclusterError
from devcluster.locations import RunDirectory
from devcluster.locks import file_lock
from devcluster.processes import ProcessIdentity, boot_id, own_identity
from devcluster.state import Phase, RunRecord


class Ended:
    """Takes the place of ending a run; remembers which."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __call__(self, run: RunDirectory, record: RunRecord | None) -> None:
        self.names.append(run.name)


@pytest.fixture
def claim(tmp_path: Path) -> Path:
    return tmp_path / "root" / ".claim"


def make_run(folder: Path, name: str, owner: ProcessIdentity) -> RunDirectory:
    run = RunDirectory(folder / name)
    run.path.mkdir()
    record = RunRecord(name, "node", held=True, owner=owner, boot=boot_id(), started=0.0)
    record.phase = Phase.UP
    record.save(run)
    return run


def take(run: RunDirectory, claim: Path, ended: Ended, wait_seconds: float = 0) -> list[str]:
    lines: list[str] = []
    machine.claim(run, wait_seconds=wait_seconds, end=ended, progress=lines.append, path=claim)
    return lines


def test_free_node_is_taken_and_given_back(tmp_path: Path, claim: Path) -> None:
    run = make_run(tmp_path, "a", own_identity())
    assert take(run, claim, Ended()) == []
    assert machine.has(run, claim)
    assert take(run, claim, Ended()) == []
    machine.release(run, print, claim)
    assert not machine.has(run, claim)
    assert not claim.parent.exists()


def test_dead_holder_is_ended(tmp_path: Path, claim: Path) -> None:
    dead = make_run(tmp_path, "dead", ProcessIdentity(own_identity().pid, 0))
    take(dead, claim, Ended())
    ended = Ended()
    lines = take(make_run(tmp_path, "b", own_identity()), claim, ended)
    assert ended.names == ["dead"]
    assert lines == ["reclaiming what run dead left behind"]


def test_holder_without_a_record_is_ended(tmp_path: Path, claim: Path) -> None:
    take(RunDirectory(tmp_path / "gone"), claim, Ended())
    ended = Ended()
    take(make_run(tmp_path, "b", own_identity()), claim, ended)
    assert ended.names == ["gone"]


@pytest.mark.parametrize("busy", [False, True], ids=["running", "being brought up or down"])
def test_live_holder_keeps_it(tmp_path: Path, claim: Path, busy: bool) -> None:
    owner = ProcessIdentity(own_identity().pid, 0) if busy else own_identity()
    holder = make_run(tmp_path, "holder", owner)
    take(holder, claim, Ended())
    ended = Ended()
    other = make_run(tmp_path, "b", own_identity())
    with (
        file_lock(holder.lock if busy else tmp_path / "unused", "it", print),
        pytest.raises(DevclusterError, match=r"'holder'.*devcluster down --name holder"),
    ):
        take(other, claim, ended)
    assert ended.names == []
    assert machine.has(holder, claim)


def test_release_by_another_run_changes_nothing(tmp_path: Path, claim: Path) -> None:
    holder = make_run(tmp_path, "holder", own_identity())
    take(holder, claim, Ended())
    machine.release(RunDirectory(tmp_path / "other"), print, claim)
    assert machine.has(holder, claim)
