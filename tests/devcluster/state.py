"""Run records: what a run started, so that anybody can end it later."""

from __future__ import annotations

import enum
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from devcluster.errors import DevclusterError
from devcluster.locations import Locations, RunDirectory
from devcluster.processes import ProcessIdentity, is_alive

RECORD_VERSION = 1


class Phase(enum.StrEnum):
    """How far a run has come."""

    STARTING = "starting"
    UP = "up"
    STOPPING = "stopping"


class Verdict(enum.StrEnum):
    """What a look at a record and at the process table says about a run."""

    BUSY = "busy"  # somebody starts or ends it right now
    RUNNING = "running"
    DEGRADED = "degraded"  # wanted, but a process of it has ended
    ABANDONED = "abandoned"  # nobody wants it: to be reclaimed


@dataclass
class RunRecord:
    """State of one run, saved at every change.

    Attributes:
        name: name of the run.
        tier: ``api`` or ``node``.
        held: True where the run ends with its owner.
        owner: the process that brings the run up, and holds it if held.
        boot: id of the boot the process identities belong to.
        started: Unix time in seconds.
        server: URL of the API server.
        phase: how far it has come.
        processes: component → its process, in the order of starting.
        sysctls: kernel setting → its value before the run changed it.
    """

    name: str
    tier: str
    held: bool
    owner: ProcessIdentity
    boot: str
    started: float
    server: str = ""
    phase: Phase = Phase.STARTING
    processes: dict[str, ProcessIdentity] = field(default_factory=dict)
    sysctls: dict[str, str] = field(default_factory=dict)

    def save(self, run: RunDirectory) -> None:
        """Writes the record in one step: readers see the old or the new one."""
        draft = run.record.with_suffix(".new")
        draft.write_text(encode(self))
        os.replace(draft, run.record)


def encode(record: RunRecord) -> str:
    """Renders a record as JSON."""
    return json.dumps({"version": RECORD_VERSION, **asdict(record)}, indent=1) + "\n"


def decode(text: str) -> RunRecord:
    """Parses a record.

    Raises:
        ValueError: it is not a record of this version; the message names the
            field.
    """
    tree = json.loads(text)
    if not isinstance(tree, dict) or tree.get("version") != RECORD_VERSION:
        raise ValueError(f"version: this is not a run record of version {RECORD_VERSION}")
    try:
        return RunRecord(
            name=str(tree["name"]),
            tier=str(tree["tier"]),
            held=bool(tree["held"]),
            owner=_identity(tree["owner"]),
            boot=str(tree["boot"]),
            started=float(tree["started"]),
            server=str(tree["server"]),
            phase=Phase(tree["phase"]),
            processes={str(key): _identity(value) for key, value in tree["processes"].items()},
            sysctls={str(key): str(value) for key, value in tree["sysctls"].items()},
        )
    except KeyError as error:
        raise ValueError(f"{error.args[0]}: missing from the run record") from None


def _identity(tree: Any) -> ProcessIdentity:
    return ProcessIdentity(pid=int(tree["pid"]), start_ticks=int(tree["start_ticks"]))


def load(run: RunDirectory) -> RunRecord | None:
    """Reads a run's record, None where there is none.

    Raises:
        DevclusterError: the record cannot be read.
    """
    try:
        return decode(run.record.read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise DevclusterError(
            f"{run.record} is damaged ({error}): end its processes by hand, then remove {run.path}"
        ) from error


def runs(locations: Locations) -> list[RunDirectory]:
    """Lists the runs that have a directory, in the order of their names."""
    if not locations.state.is_dir():
        return []
    folders = sorted(path for path in locations.state.iterdir() if path.is_dir())
    return [RunDirectory(path) for path in folders if not path.name.startswith(".")]


def judge(
    record: RunRecord, boot: str, alive: Callable[[ProcessIdentity], bool] = is_alive
) -> Verdict:
    """Decides what a run is, from its record and who still lives.

    Args:
        record: the record as last saved.
        boot: id of the present boot.
        alive: tells whether exactly that process runs.
    """
    if record.boot != boot:
        return Verdict.ABANDONED
    owned = alive(record.owner)
    if record.phase is not Phase.UP:
        return Verdict.BUSY if owned else Verdict.ABANDONED
    if record.held and not owned:
        return Verdict.ABANDONED
    living = [alive(identity) for identity in record.processes.values()]
    if all(living):
        return Verdict.RUNNING
    if record.held or any(living):
        return Verdict.DEGRADED
    return Verdict.ABANDONED
