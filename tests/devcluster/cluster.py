"""Brings runs up and takes them down, whatever state they are in."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from devcluster import binaries, controlplane, network, state
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
    """

    name: str
    tier: str
    held: bool = False
    controllers: bool = False
    kwok: bool = False

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
            _start_api(Run(directory, record, programs, network.API_PLAN), request)
        except BaseException:
            _end(directory, record)
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
    if verdict is Verdict.RUNNING and not record.held and record.tier == request.tier:
        progress(f"{request.name} is up already")
        return record
    if verdict is Verdict.DEGRADED and not record.held and record.tier == request.tier:
        progress(f"{request.name} lost a process: bringing it up anew")
        _end(directory, record)
        return None
    raise DevclusterError(
        f"a run called {request.name!r} (tier {record.tier}, {verdict}) exists: "
        f"take it down first (devcluster down --name {request.name}) or choose another name"
    )


def _start_api(run: Run, request: UpRequest) -> None:
    plane = controlplane.start(run, NODE_NAME)
    if request.controllers or request.kwok:
        controlplane.start_controllers(run, plane)
    if request.kwok:
        network.block_routes(run.plan.blocked)
        controlplane.start_kwok(run)


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
            return False
        started = time.monotonic()
        _end(directory, state.load(directory))
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
                _end(directory, record)
                removed.append(directory.name)
    return removed


def _end(directory: RunDirectory, record: RunRecord | None) -> None:
    if record is not None:
        record.owner = own_identity()
        record.phase = Phase.STOPPING
        record.save(directory)
        if record.boot == boot_id():
            kill(record.processes.values())
    kill(marked_processes(directory.path))
    _remove(directory.sockets)
    _remove(directory.path)
    directory.lock.unlink(missing_ok=True)


def _remove(path: Path) -> None:
    if path.exists():
        shutil.rmtree(path)
