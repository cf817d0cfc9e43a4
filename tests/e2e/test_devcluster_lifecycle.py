"""Tier node of the dev cluster: one per machine, and no trace of it on the host."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from devcluster import cluster, machine, nodeconfig, packetfilter, state
from devcluster.cluster import UpRequest
from devcluster.errors import DevclusterError
from devcluster.handle import ClusterHandle, attach
from devcluster.locations import Locations, RunDirectory
from devcluster.processes import boot_id, is_alive
from support.eventually import eventually
from support.host_traces import HostTraces

pytestmark = [pytest.mark.e2e, pytest.mark.exclusive_node, pytest.mark.timeout(300)]

PAUSE_POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "pause", "labels": {"app": "pause"}},
    "spec": {
        "containers": [
            {
                "name": "main",
                "image": nodeconfig.PAUSE_IMAGE,
                "ports": [{"containerPort": 9, "hostPort": 19009}],
                "volumeMounts": [{"name": "memory", "mountPath": "/memory"}],
            }
        ],
        "volumes": [{"name": "memory", "emptyDir": {"medium": "Memory"}}],
    },
}
PAUSE_POLICY = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "pause"},
    "spec": {
        "podSelector": {"matchLabels": {"app": "pause"}},
        "ingress": [{"from": [{"podSelector": {}}]}],
    },
}


@pytest.fixture
def locations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Locations:
    """State of its own, also for child processes; programs from the common cache."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return Locations.from_environment()


def run_a_pod(handle: ClusterHandle) -> None:
    for resource in (PAUSE_POLICY, PAUSE_POD):
        handle.kubectl("apply", "--filename=-", stdin=json.dumps(resource))
    handle.kubectl("wait", "--for=condition=Ready", "--timeout=150s", "pod/pause")
    eventually(lambda: len(packetfilter.own_sets()) >= 2, "the policy is enforced", 30, 0.2)


def test_run_leaves_no_trace_and_keeps_others_out(locations: Locations) -> None:
    run = locations.run("first")
    before = HostTraces.of(run)
    cluster.up(UpRequest("first", "node", gpus=2), locations, print)
    try:
        run_a_pod(attach("first", locations))
        during = HostTraces.of(run)
        assert machine.has(run)
        with pytest.raises(DevclusterError, match=r"'first'.* has this machine's node"):
            cluster.up(UpRequest("second", "node", wait_seconds=0), locations, print)
        assert machine.has(run)
        assert state.judge(record_of(run), boot_id()) is state.Verdict.RUNNING
    finally:
        cluster.down("first", locations, print)
    changed = {name for name in vars(before) if getattr(before, name) != getattr(during, name)}
    assert changed >= {
        "links",
        "rules",
        "sets",
        "routing",
        "cgroups",
        "mounts",
        "processes",
        "files",
    }
    assert HostTraces.of(run) == before
    assert state.runs(locations) == []


def test_killed_holder_is_reclaimed(locations: Locations) -> None:
    run = locations.run("killed")
    before = HostTraces.of(run)
    holder = subprocess.Popen(
        [sys.executable, "-m", "devcluster", "up", "--tier=node", "--hold", "--name=killed"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(Path(cluster.__file__).parents[1])},
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    with holder.stdin, holder.stdout:
        assert holder.stdout.readline()
        run_a_pod(attach("killed", locations))
        holder.send_signal(signal.SIGKILL)
        holder.wait(30)
    record = record_of(run)
    assert all(is_alive(identity) for identity in record.processes.values())
    cluster.up(UpRequest("next", "node"), locations, print)
    cluster.down("next", locations, print)
    assert not any(is_alive(identity) for identity in record.processes.values())
    assert HostTraces.of(run) == before
    assert state.runs(locations) == []


def record_of(run: RunDirectory) -> state.RunRecord:
    record = state.load(run)
    assert record is not None
    return record
