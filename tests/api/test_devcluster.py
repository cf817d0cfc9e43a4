"""Tier api of the dev cluster: it comes up, works, and leaves nothing."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.parse
from functools import partial
from pathlib import Path

import pytest

from devcluster import cluster, state
from devcluster.handle import ClusterHandle, held
from devcluster.locations import Locations
from devcluster.processes import boot_id, identify, is_alive, kill

pytestmark = [pytest.mark.api, pytest.mark.timeout(120)]


@pytest.fixture
def locations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Locations:
    """State of its own, also for child processes; programs from the common cache."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return Locations.from_environment()


def record_of(name: str, locations: Locations) -> state.RunRecord:
    record = state.load(locations.run(name))
    assert record is not None
    return record


def port_of(record: state.RunRecord) -> int:
    port = urllib.parse.urlsplit(record.server).port
    assert port is not None
    return port


def assert_nothing_left(record: state.RunRecord, locations: Locations) -> None:
    assert not any(is_alive(identity) for identity in record.processes.values())
    assert state.runs(locations) == []
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port_of(record))) != 0


def test_namespace_gets_its_service_account(api_cluster: ClusterHandle, api_namespace: str) -> None:
    api_cluster.kubectl(
        *("wait", "--for=create", "--timeout=30s"),
        *("--namespace", api_namespace, "serviceaccount/default"),
    )


def test_rbac_is_on(api_cluster: ClusterHandle, api_namespace: str) -> None:
    answer = api_cluster.kubectl(
        *("auth", "can-i", "create", "pods", "--namespace", api_namespace),
        f"--as=system:serviceaccount:{api_namespace}:default",
        check=False,
    )
    assert answer.stdout.strip() == "no"


def test_detached_runs_live_side_by_side_and_go(locations: Locations) -> None:
    names = ["left", "right"]
    for name in names:
        cluster.up(cluster.UpRequest(name, "api"), locations, print)
    records = [record_of(name, locations) for name in names]
    assert len({record.server for record in records}) == 2
    verdicts = {state.judge(record, boot_id()) for record in records}
    assert verdicts == {state.Verdict.RUNNING}
    assert cluster.up(cluster.UpRequest("left", "api"), locations, print) == records[0]
    for name in names:
        assert cluster.down(name, locations, print)
    assert not cluster.down("left", locations, print)
    for record in records:
        assert_nothing_left(record, locations)


def test_held_run_goes_with_its_block(locations: Locations) -> None:
    with held("held", ["--tier", "api"], locations) as handle:
        record = record_of("held", locations)
        versions = json.loads(handle.kubectl("version", "--output=json").stdout)
        assert versions["serverVersion"]["gitVersion"] == versions["clientVersion"]["gitVersion"]
    assert_nothing_left(record, locations)


def run_verb(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the command line as users do."""
    return subprocess.run(
        [sys.executable, "-m", "devcluster", *arguments],
        env=os.environ | {"PYTHONPATH": str(Path(cluster.__file__).parents[1])},
        capture_output=True,
        text=True,
    )


def test_status_and_kubeconfig_tell_of_a_run(locations: Locations) -> None:
    with held("told", ["--tier", "api"], locations) as handle:
        record = record_of("told", locations)
        heading, *details = run_verb("status").stdout.splitlines()
        assert heading.startswith("told: tier api, running, ")
        assert heading.endswith(record.server)
        processes = [f"  {name} {identity.pid}" for name, identity in record.processes.items()]
        assert details == [f"  kubeconfig {handle.kubeconfig}", *processes]
        assert run_verb("kubeconfig", "--name", "told").stdout == f"{handle.kubeconfig}\n"
    assert run_verb("status").stdout == ""
    refused = run_verb("kubeconfig", "--name", "told")
    assert refused.returncode == 1
    assert "'told' is not up: devcluster up --name told" in refused.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_takes_held_run_down(number: signal.Signals, locations: Locations) -> None:
    record = signalled_run(number, locations)
    assert_nothing_left(record, locations)


def test_killed_holder_is_reclaimed(locations: Locations) -> None:
    record = signalled_run(signal.SIGKILL, locations)
    assert state.judge(record, boot_id()) is state.Verdict.ABANDONED
    assert all(is_alive(identity) for identity in record.processes.values())
    assert cluster.reclaim(locations, print) == [record.name]
    assert_nothing_left(record, locations)


def signalled_run(number: signal.Signals, locations: Locations) -> state.RunRecord:
    """Sends a signal to the process that holds a run; returns the run's record."""
    command = [sys.executable, "-m", "devcluster", "up", "--tier", "api", "--hold"]
    holder = subprocess.Popen(
        [*command, "--name", "signalled"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(Path(cluster.__file__).parents[1])},
        # A shell starts background jobs with SIGINT ignored, and children inherit that.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    with holder, holder.stdin, holder.stdout:
        assert holder.stdout.readline()
        record = record_of("signalled", locations)
        assert identify(holder.pid) == record.owner
        holder.send_signal(number)
        holder.wait(30)
    return record


def test_unrecorded_process_is_reclaimed_by_its_mark(locations: Locations) -> None:
    cluster.up(cluster.UpRequest("marked", "api"), locations, print)
    record = record_of("marked", locations)
    remembered = {"etcd": record.processes["etcd"]}
    try:
        dataclasses.replace(record, processes=remembered).save(locations.run("marked"))
        cluster.down("marked", locations, print)
        assert_nothing_left(record, locations)
    finally:
        kill(record.processes.values())
