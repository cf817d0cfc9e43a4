"""Run records: written whole, read strictly, judged by who still lives."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from devcluster import state
from devcluster.errors import DevclusterError
from devcluster.locations import Locations, RunDirectory
from devcluster.processes import ProcessIdentity
from devcluster.state import Phase, RunRecord, Verdict

OWNER = ProcessIdentity(1000, 11)
ETCD = ProcessIdentity(1001, 12)
SERVER = ProcessIdentity(1002, 13)
BOOT = "boot-1"


def record(**changes: Any) -> RunRecord:
    fields: dict[str, Any] = {
        "name": "node",
        "tier": "node",
        "held": False,
        "owner": OWNER,
        "boot": BOOT,
        "started": 1.5,
        "server": "https://10.244.0.1:6443",
        "phase": Phase.UP,
        "processes": {"etcd": ETCD, "kube-apiserver": SERVER},
        "sysctls": {"net/ipv4/ip_forward": "0"},
    }
    return RunRecord(**(fields | changes))


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("held", [True, False])
def test_record_survives_encoding(phase: Phase, held: bool) -> None:
    original = record(phase=phase, held=held)
    assert state.decode(state.encode(original)) == original


def test_record_is_saved_whole(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "node")
    assert state.load(run) is None
    run.path.mkdir()
    record().save(run)
    record(phase=Phase.STOPPING).save(run)
    assert state.load(run) == record(phase=Phase.STOPPING)
    assert [path.name for path in run.path.iterdir()] == ["run.json"]


def without(field: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda tree: {key: value for key, value in tree.items() if key != field}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tree: tree | {"version": 99}, "version"),
        (lambda tree: [tree], "version"),
        (without("owner"), "owner: missing"),
        (without("sysctls"), "sysctls: missing"),
        (lambda tree: tree | {"owner": {"pid": 3}}, "start_ticks: missing"),
        (lambda tree: tree | {"phase": "sideways"}, "sideways"),
    ],
)
def test_damaged_record_is_refused_with_a_remedy(
    tmp_path: Path, change: Callable[[Any], Any], message: str
) -> None:
    run = RunDirectory(tmp_path)
    run.record.write_text(json.dumps(change(json.loads(state.encode(record())))))
    with pytest.raises(DevclusterError, match=rf"{message}.*then remove {tmp_path}"):
        state.load(run)


@pytest.mark.parametrize(
    ("changes", "alive", "verdict"),
    [
        ({}, {ETCD, SERVER}, Verdict.RUNNING),
        ({}, {OWNER, ETCD, SERVER}, Verdict.RUNNING),
        ({}, {ETCD}, Verdict.DEGRADED),
        ({}, set(), Verdict.ABANDONED),
        ({"boot": "boot-0"}, {OWNER, ETCD, SERVER}, Verdict.ABANDONED),
        ({"held": True}, {OWNER, ETCD, SERVER}, Verdict.RUNNING),
        ({"held": True}, {OWNER, ETCD}, Verdict.DEGRADED),
        ({"held": True}, {OWNER}, Verdict.DEGRADED),
        ({"held": True}, {ETCD, SERVER}, Verdict.ABANDONED),
        ({"phase": Phase.STARTING}, {OWNER, ETCD}, Verdict.BUSY),
        ({"phase": Phase.STARTING}, {ETCD, SERVER}, Verdict.ABANDONED),
        ({"phase": Phase.STOPPING}, {OWNER}, Verdict.BUSY),
        ({"phase": Phase.STOPPING}, {ETCD}, Verdict.ABANDONED),
    ],
)
def test_judge(changes: dict[str, Any], alive: set[ProcessIdentity], verdict: Verdict) -> None:
    assert state.judge(record(**changes), BOOT, alive.__contains__) is verdict


def test_runs_are_listed_by_name(tmp_path: Path) -> None:
    locations = Locations(cache=tmp_path / "cache", state=tmp_path / "state")
    assert state.runs(locations) == []
    for name in ("b", "a"):
        (locations.state / name).mkdir(parents=True)
    (locations.state / ".a.lock").touch()
    assert [run.name for run in state.runs(locations)] == ["a", "b"]
