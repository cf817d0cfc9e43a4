"""Where the dev cluster keeps what outlives one command."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from devcluster.errors import DevclusterError

NODE_ROOT = Path("/var/lib/enginecore-devcluster")
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")


@dataclass(frozen=True)
class Locations:
    """Root directories, following the XDG base directory convention.

    Attributes:
        cache: built programs and images; safe to delete at any time.
        state: one directory per run.
    """

    cache: Path
    state: Path

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Locations:
        """Reads XDG_CACHE_HOME and XDG_STATE_HOME, with their usual defaults."""
        home = Path(environ.get("HOME", "/root"))
        cache = Path(environ.get("XDG_CACHE_HOME") or home / ".cache")
        state = Path(environ.get("XDG_STATE_HOME") or home / ".local/state")
        suffix = Path("enginecore/devcluster")
        return cls(cache=cache / suffix, state=state / suffix)

    @property
    def images(self) -> Path:
        """Image archives and the image builder's storage."""
        return self.cache / "images"

    def run(self, name: str) -> RunDirectory:
        """Returns the directory of the run called ``name``.

        Raises:
            DevclusterError: the name is not a short DNS label.
        """
        if not _NAME.fullmatch(name):
            raise DevclusterError(
                f"name {name!r} is not valid: use at most 40 of a-z, 0-9 and '-', "
                "starting and ending with a letter or digit"
            )
        return RunDirectory(self.state / name)


@dataclass(frozen=True)
class RunDirectory:
    """Layout of one run's directory; `record` is written first, removed last."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def record(self) -> Path:
        return self.path / "run.json"

    @property
    def lock(self) -> Path:
        return self.path.with_name(f".{self.path.name}.lock")

    @property
    def kubeconfig(self) -> Path:
        return self.path / "kubeconfig"

    @property
    def pki(self) -> Path:
        return self.path / "pki"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def node(self) -> Path:
        """Where containerd and kubelet work.

        On a disk, because containers live there, and short, because sockets in
        it may have paths of 107 bytes.
        """
        return NODE_ROOT / self.path.name

    def client_kubeconfig(self, component: str) -> Path:
        return self.path / "clients" / f"{component}.kubeconfig"

    def log(self, process: str) -> Path:
        return self.logs / f"{process}.log"
