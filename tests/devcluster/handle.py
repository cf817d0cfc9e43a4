"""A cluster as its users see it: paths, kubectl, and a life bound to theirs."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from devcluster import binaries, node
from devcluster.errors import DevclusterError
from devcluster.locations import Locations, RunDirectory

_KUBECTL_SECONDS = 120.0
_DOWN_SECONDS = 180.0
_USER_PROGRAMS = ("kubectl", "ctr")


@dataclass(frozen=True)
class ClusterHandle:
    """A running cluster.

    Attributes:
        directory: directory of its run.
        programs: file name → path of the programs its users call.
    """

    directory: RunDirectory
    programs: Mapping[str, Path]

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.directory.name

    @property
    def kubeconfig(self) -> Path:
        """The admin's kubeconfig file."""
        return self.directory.kubeconfig

    def kubectl(
        self,
        *arguments: str,
        stdin: str | None = None,
        check: bool = True,
        seconds: float = _KUBECTL_SECONDS,
    ) -> subprocess.CompletedProcess[str]:
        """Runs kubectl as the cluster's admin.

        Args:
            arguments: its command line.
            stdin: text for its standard input, for ``apply -f -``.
            check: raise where it fails.
            seconds: how long it may take.

        Raises:
            DevclusterError: it failed; the message holds what it printed.
            subprocess.TimeoutExpired: it took too long.
        """
        done = subprocess.run(
            [self.programs["kubectl"], f"--kubeconfig={self.kubeconfig}", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=seconds,
        )
        if check and done.returncode != 0:
            raise DevclusterError(
                f"kubectl {' '.join(arguments)} exited {done.returncode}: {done.stderr.strip()}"
            )
        return done

    def load_image(self, archive: Path) -> None:
        """Imports an image archive into the node, if the node lacks an image of it.

        Raises:
            DevclusterError: the archive is missing or damaged.
        """
        node.load_image(self.directory, self.programs, archive)


def attach(name: str, locations: Locations) -> ClusterHandle:
    """Returns a handle on a cluster that is up already.

    Raises:
        DevclusterError: there is none of that name.
    """
    directory = locations.run(name)
    if not directory.kubeconfig.exists():
        raise DevclusterError(f"run {name!r} is not up: devcluster up --name {name}")
    return ClusterHandle(directory, _user_programs(locations))


def _user_programs(locations: Locations) -> dict[str, Path]:
    return {name: binaries.program(name).path(locations.cache) for name in _USER_PROGRAMS}


@contextlib.contextmanager
def held(name: str, options: Sequence[str], locations: Locations) -> Iterator[ClusterHandle]:
    """Brings a cluster up that ends with the block, or with this process.

    A child process brings it up, watches this one and takes it down; so it
    goes away even where this process is killed.

    Args:
        name: name of the run.
        options: further options of ``devcluster up``.
        locations: where its files are.

    Raises:
        DevclusterError: it did not come up or did not go down cleanly.
    """
    command = [sys.executable, "-m", "devcluster", "up", "--hold", "--name", name, *options]
    holder = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=_environment(),
        # Ctrl-C in a terminal reaches this process alone, which then ends the block.
        start_new_session=True,
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    with holder.stdin, holder.stdout:
        line = holder.stdout.readline()
        if line:
            try:
                yield ClusterHandle(locations.run(name), _user_programs(locations))
            finally:
                holder.stdin.close()
                holder.wait(_DOWN_SECONDS)
    if holder.wait(_DOWN_SECONDS) != 0:
        step = "go down cleanly" if line else "come up"
        raise DevclusterError(f"cluster {name} did not {step}: see the output above")


def _environment() -> dict[str, str]:
    package_parent = str(Path(__file__).resolve().parent.parent)
    return os.environ | {"PYTHONPATH": package_parent}
