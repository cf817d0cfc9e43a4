"""Builds the pinned Go programs once and keeps them in a content-keyed cache."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import subprocess
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from devcluster.errors import DevclusterError
from devcluster.locks import Progress, file_lock
from devcluster.pins import GO_ROOT, MODULES

_API = ("etcd", "kube-apiserver", "kubectl", "kube-controller-manager", "kube-scheduler", "kwok")
_NODE = (
    "kubelet",
    "kube-proxy",
    "containerd",
    "containerd-shim-runc-v2",
    "ctr",
    "coredns",
    "kube-router",
    "pause",
)
TIERS: dict[str, tuple[str, ...]] = {
    "api": _API,
    "node": _API + _NODE,
    "chart": ("kubectl", "helm", "kubeconform"),
}
BUILD_FLAGS = ("-trimpath", "-buildvcs=false")
_REPORT_SECONDS = 30.0
_ERROR_TAIL_BYTES = 2000


@dataclass(frozen=True)
class Program:
    """One binary: where it comes from and where the cache keeps it.

    Attributes:
        name: its file name.
        module: directory under ``go/`` whose go.mod pins it.
        package: import path of its command.
        ldflags: linker flags, joined.
        key: digest of everything that decides its content.
    """

    name: str
    module: str
    package: str
    ldflags: str
    key: str

    def path(self, cache: Path) -> Path:
        return cache / f"{self.module}-{self.key}" / "bin" / self.name


def cache_key(sources: Iterable[tuple[str, bytes]], flags: Iterable[str]) -> str:
    """Digests the files and flags that decide what a build produces.

    Args:
        sources: (relative name, content) of each file, in any order.
        flags: build flags and the target platform, in order.

    Returns:
        16 hexadecimal digits.
    """
    digest = hashlib.sha256()
    for name, content in sorted(sources):
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    for flag in flags:
        digest.update(f"{flag}\0".encode())
    return digest.hexdigest()[:16]


def program(name: str, go_root: Path = GO_ROOT) -> Program:
    """Looks up one program by its file name.

    Raises:
        DevclusterError: no module names it.
    """
    for directory, module in MODULES.items():
        if name not in module.programs:
            continue
        ldflags = " ".join(("-s", "-w", *module.ldflags))
        folder = go_root / directory
        sources = [(path.name, path.read_bytes()) for path in folder.iterdir() if path.is_file()]
        flags = (*BUILD_FLAGS, ldflags, f"linux/{platform.machine()}")
        return Program(
            name=name,
            module=directory,
            package=module.programs[name],
            ldflags=ldflags,
            key=cache_key(sources, flags),
        )
    known = sorted(name for module in MODULES.values() for name in module.programs)
    raise DevclusterError(f"program {name!r} is unknown: choose one of {', '.join(known)}")


def build(names: Iterable[str], cache: Path, progress: Progress) -> dict[str, Path]:
    """Makes sure every named program is in the cache.

    Args:
        names: file names of programs.
        cache: root of the cache.
        progress: takes one line of text per step.

    Returns:
        File name → path of the binary.

    Raises:
        DevclusterError: a name is unknown or the Go toolchain failed.
    """
    programs = [program(name) for name in names]
    missing = [item for item in programs if not item.path(cache).exists()]
    for number, item in enumerate(missing, start=1):
        _build_one(item, cache, _counted(progress, f"[{number}/{len(missing)}]"))
    return {item.name: item.path(cache) for item in programs}


def _counted(progress: Progress, prefix: str) -> Progress:
    return lambda line: progress(f"{prefix} {line}")


def _build_one(item: Program, cache: Path, progress: Progress) -> None:
    target = item.path(cache)
    target.parent.mkdir(parents=True, exist_ok=True)
    with file_lock(target.with_name(f".{item.name}.lock"), f"building {item.name}", progress):
        if target.exists():
            return
        version = MODULES[item.module].version
        progress(f"building {item.name} {version}")
        started = time.monotonic()
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".build-") as scratch:
            output = Path(scratch) / item.name
            _go_build(item, output, progress)
            os.replace(output, target)
        size = target.stat().st_size / 1e6
        progress(f"built {item.name} {version}: {size:.0f} MB in {_seconds(started)}")


def _go_build(item: Program, output: Path, progress: Progress) -> None:
    command = ["go", "build", *BUILD_FLAGS, "-ldflags", item.ldflags, "-o", str(output)]
    command.append(item.package)
    log = output.with_suffix(".log")
    started = time.monotonic()
    with log.open("wb") as stream:
        try:
            process = subprocess.Popen(
                command,
                cwd=GO_ROOT / item.module,
                env=os.environ | {"CGO_ENABLED": "0", "GOWORK": "off"},
                stdout=stream,
                stderr=subprocess.STDOUT,
            )
        except FileNotFoundError:
            raise DevclusterError("go is not on PATH: install Go 1.26 or newer") from None
        try:
            while True:
                try:
                    code = process.wait(timeout=_REPORT_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    progress(f"building {item.name}: {_seconds(started)} so far")
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    if code != 0:
        tail = log.read_bytes()[-_ERROR_TAIL_BYTES:].decode(errors="replace").strip()
        raise DevclusterError(
            f"building {item.name} failed with exit code {code}\n$ {shlex.join(command)}\n{tail}"
        )


def _seconds(started: float) -> str:
    return f"{time.monotonic() - started:.0f} s"
