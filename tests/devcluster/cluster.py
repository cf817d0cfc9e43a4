"""Brings runs up and takes them down, whatever state they are in."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from devcluster import (
    binaries,
    controlplane,
    machine,
    network,
    node,
    nodeconfig,
    packages,
    packetfilter,
    state,
    teardown,
)
from devcluster.controlplane import Run
from devcluster.errors import DevclusterError
from devcluster.locations import Locations, RunDirectory
from devcluster.locks import Progress, file_lock, free_lock
from devcluster.processes import boot_id, kill, marked_processes, own_identity
from devcluster.state import Phase, RunRecord, Verdict

NODE_NAME = "devcluster"


@dataclass(frozen=True)
class UpRequest:
    """What to bring up.

    Attributes:
        name: name of the run.
        tier: ``api`` or ``node``.
        held: True where the caller stays and takes the run down itself.
        controllers: api tier: controller manager and scheduler too.
        kwok: fake nodes too (implies controllers).
        gpus: node tier: how many GPUs the node pretends to have.
        wait_seconds: node tier: how long to wait for another run's end.
    """

    name: str
    tier: str
    held: bool = False
    controllers: bool = False
    kwok: bool = False
    gpus: int = 0
    wait_seconds: float = 600.0

    @property
    def programs(self) -> tuple[str, ...]:
        """File names of the programs that this run starts or its users call."""
        wanted = {"etcd", "kube-apiserver", "kubectl"}
        if self.tier == "node":
            wanted = set(binaries.TIERS["node"]) - {"kwok"}
        elif self.controllers or self.kwok:
            wanted |= {"kube-controller-manager", "kube-scheduler"}
        if self.kwok:
            wanted |= {"kwok"}
        return tuple(name for name in binaries.TIERS["node"] if name in wanted)


def up(request: UpRequest, locations: Locations, progress: Progress) -> RunRecord:
    """Brings a run up, or finds it up already.

    Args:
        request: what to bring up.
        locations: where its files go.
        progress: takes one line of text per step.

    Raises:
        DevclusterError: it did not come up; nothing of it is left then.
    """
    programs = binaries.build(request.programs, locations.cache, progress)
    reclaim(locations, progress)
    directory = locations.run(request.name)
    with file_lock(directory.lock, f"run {request.name}", progress):
        found = _existing(directory, request, progress)
        if found is not None:
            return found
        started = time.monotonic()
        record = RunRecord(
            name=request.name,
            tier=request.tier,
            held=request.held,
            owner=own_identity(),
            boot=boot_id(),
            started=time.time(),
        )
        directory.path.mkdir(parents=True)
        record.save(directory)
        try:
            _start(directory, record, programs, request, progress)
        except BaseException:
            _end(directory, record, progress)
            raise
        record.phase = Phase.UP
        record.save(directory)
        progress(f"{request.name} is up after {time.monotonic() - started:.1f} s")
        return record


def _existing(directory: RunDirectory, request: UpRequest, progress: Progress) -> RunRecord | None:
    record = state.load(directory)
    if record is None:
        return None
    verdict = state.judge(record, boot_id())
    same = record.tier == request.tier and not record.held and not request.held
    if same and verdict is Verdict.RUNNING:
        progress(f"{request.name} is up already")
        return record
    if verdict is Verdict.ABANDONED or (same and verdict is Verdict.DEGRADED):
        progress(f"{request.name} lost its processes: bringing it up anew")
        _end(directory, record, progress)
        return None
    raise DevclusterError(
        f"a run called {request.name!r} (tier {record.tier}, {verdict}) exists: "
        f"take it down first (devcluster down --name {request.name}) or choose another name"
    )


def _start(
    directory: RunDirectory,
    record: RunRecord,
    programs: Mapping[str, Path],
    request: UpRequest,
    progress: Progress,
) -> None:
    if request.tier == "api":
        run = Run(directory, record, programs, network.API_PLAN)
        plane = controlplane.start(run, NODE_NAME)
        if request.controllers or request.kwok:
            controlplane.start_controllers(run, plane)
    else:
        packages.ensure_packages(packages.NODE_PACKAGES, progress)
        machine.claim(directory, wait_seconds=request.wait_seconds, end=_remove, progress=progress)
        run = Run(directory, record, programs, network.NODE_PLAN)
        _prepare_host(run)
        node.start_containerd(run)
        plane = controlplane.start(run, NODE_NAME)
        controlplane.start_controllers(run, plane)
        node.start(run, plane, NODE_NAME)
        if request.gpus:
            node.advertise_gpus(run, plane, NODE_NAME, request.gpus)
    if request.kwok:
        network.block_routes(run.plan.blocked)
        controlplane.start_kwok(run)


def _prepare_host(run: Run) -> None:
    """Makes routes, bridge, rules and cgroup; what a lost run left of them goes first."""
    _remove_host_traces(run.directory)
    # Before anything can dial an address that is not there.
    network.block_routes(run.plan.blocked)
    run.record.sysctls = network.read_sysctls()
    run.record.save(run.directory)
    network.set_sysctls()
    network.create_bridge(run.plan)
    network.close_bridge(run.plan)
    teardown.create_cgroup(nodeconfig.CGROUP_ROOT)


def down(name: str, locations: Locations, progress: Progress) -> bool:
    """Takes a run down and removes what it made.

    Returns:
        False where there was no such run.

    Raises:
        DevclusterError: something of it cannot be removed.
    """
    directory = locations.run(name)
    with file_lock(directory.lock, f"run {name}", progress):
        if not directory.path.exists():
            directory.lock.unlink()
            return False
        started = time.monotonic()
        _end(directory, state.load(directory), progress)
        progress(f"{name} is down after {time.monotonic() - started:.1f} s")
    return True


def reclaim(locations: Locations, progress: Progress) -> list[str]:
    """Removes what dead runs left: processes, files, and the node's traces.

    Returns:
        Names of the runs that were removed.
    """
    removed = []
    for directory in state.runs(locations):
        with free_lock(directory.lock) as ours:
            # Somebody who holds the lock is just bringing it up or down.
            if not ours:
                continue
            record = state.load(directory)
            if record is None or state.judge(record, boot_id()) is Verdict.ABANDONED:
                progress(f"reclaiming what run {directory.name} left behind")
                _end(directory, record, progress)
                removed.append(directory.name)
    return removed


def unblock_routes(locations: Locations) -> None:
    """Removes the unreachable routes, which stay when a run ends.

    Raises:
        DevclusterError: a run is left whose clients they protect.
    """
    left = state.runs(locations)
    if left:
        raise DevclusterError(f"run {left[0].name!r} still needs the routes: take it down first")
    network.unblock_routes(network.NODE_PLAN.blocked)


def _end(directory: RunDirectory, record: RunRecord | None, progress: Progress) -> None:
    _remove(directory, record)
    machine.release(directory, progress)


def _remove(directory: RunDirectory, record: RunRecord | None) -> None:
    if record is not None:
        record.owner = own_identity()
        record.phase = Phase.STOPPING
        record.save(directory)
        if record.boot == boot_id():
            kill(record.processes.values())
    kill(marked_processes(directory.path))
    if machine.has(directory):
        _remove_host_traces(directory)
        if record is not None and record.boot == boot_id():
            network.restore_sysctls(record.sysctls)
    teardown.remove_tree(directory.path)
    directory.lock.unlink(missing_ok=True)


def _remove_host_traces(directory: RunDirectory) -> None:
    teardown.remove_cgroup(nodeconfig.CGROUP_ROOT)
    teardown.unmount_below([directory.node])
    network.remove_bridge()
    network.open_bridge()
    packetfilter.remove_rules()
    packetfilter.remove_sets()
    teardown.remove_host_files(directory, nodeconfig.CNI_NETWORK)
    teardown.remove_tree(directory.node)
