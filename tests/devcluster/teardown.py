"""Finds and removes what a node leaves outside its run's directory."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

from devcluster.errors import DevclusterError
from devcluster.locations import RunDirectory
from devcluster.processes import ProcessIdentity, identify, kill

CGROUPS = Path("/sys/fs/cgroup")
_EMPTY_SECONDS = 30.0
_CNI_STATE = Path("/var/lib/cni")
_CONTAINER_LOGS = Path("/var/log/containers")
_DEVICE_PLUGIN_SOCKET = Path("/var/lib/kubelet/device-plugins/kubelet.sock")
_HOST_FOLDERS = (
    _CNI_STATE / "results",
    _CNI_STATE / "cache",
    _CNI_STATE,
    _CONTAINER_LOGS,
    _DEVICE_PLUGIN_SOCKET.parent,
    _DEVICE_PLUGIN_SOCKET.parent.parent,
    Path("/run/containerd/s"),
    Path("/run/containerd"),
)


def mounts_below(mountinfo: str, roots: Iterable[Path]) -> list[Path]:
    """Lists mount points below any of the roots, the innermost and newest first.

    Args:
        mountinfo: content of ``/proc/self/mountinfo``.
        roots: directories; a mount on a root itself counts.
    """
    folders = list(roots)
    points = [_unescape(line.split(" ", 5)[4]) for line in mountinfo.splitlines()]
    found = [
        Path(point)
        for point in points
        if any(Path(point) == root or root in Path(point).parents for root in folders)
    ]
    found.reverse()
    return sorted(found, key=lambda path: len(path.parts), reverse=True)


def _unescape(point: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        point = point.replace(code, character)
    return point


def unmount_below(roots: list[Path]) -> None:
    """Unmounts everything below the roots.

    Raises:
        DevclusterError: a mount is left; deleting files now could reach
            through it into somebody else's.
    """
    for point in mounts_below(_mountinfo(), roots):
        subprocess.run(["umount", "--lazy", point], capture_output=True, check=False)
    left = mounts_below(_mountinfo(), roots)
    if left:
        raise DevclusterError(f"cannot unmount {left[0]}: unmount it by hand, then try again")


def _mountinfo() -> str:
    return Path("/proc/self/mountinfo").read_text()


def remove_tree(path: Path) -> None:
    """Deletes a directory in which nothing is mounted."""
    unmount_below([path])
    if path.exists():
        shutil.rmtree(path)


def cgroup_directories(name: str, root: Path = CGROUPS) -> list[Path]:
    """Lists a cgroup in every hierarchy, with its descendants, the innermost first."""
    tops = [root / name, *(hierarchy / name for hierarchy in root.iterdir())]
    found: list[Path] = []
    for top in tops:
        if top.is_dir():
            below = [Path(folder) for folder, _, _ in os.walk(top)]
            found += reversed(below)
    return found


def create_cgroup(name: str, root: Path = CGROUPS) -> None:
    """Makes a cgroup in every hierarchy that can hold pods."""
    if (root / "cgroup.controllers").exists():
        (root / name).mkdir(exist_ok=True)
        return
    for hierarchy in root.iterdir():
        if hierarchy.is_dir() and not hierarchy.is_symlink():
            folder = hierarchy / name
            folder.mkdir(exist_ok=True)
            if hierarchy.name.startswith("cpuset"):
                for setting in ("cpuset.cpus", "cpuset.mems"):
                    (folder / setting).write_text((hierarchy / setting).read_text())


def remove_cgroup(name: str, root: Path = CGROUPS) -> None:
    """Kills every process in a cgroup and removes it.

    Raises:
        DevclusterError: a process does not go.
    """
    deadline = time.monotonic() + _EMPTY_SECONDS
    while True:
        folders = cgroup_directories(name, root)
        if not folders:
            return
        kill(members(folders))
        for folder in folders:
            # Still busy while the kernel takes the last process away.
            with contextlib.suppress(OSError):
                folder.rmdir()
        if time.monotonic() > deadline:
            raise DevclusterError(f"cgroup {folders[-1]} stays busy: look at its cgroup.procs")


def members(folders: Iterable[Path]) -> list[ProcessIdentity]:
    """Returns the running processes in any of the cgroups."""
    found = {}
    for folder in folders:
        with contextlib.suppress(OSError):
            for line in (folder / "cgroup.procs").read_text().split():
                identity = identify(int(line))
                if identity is not None:
                    found[identity.pid] = identity
    return list(found.values())


def remove_host_files(run: RunDirectory, network: str) -> None:
    """Removes what the node's programs wrote outside the run's directories.

    Args:
        run: the run; the state of its containers must still be there.
        network: name of its CNI network.
    """
    for folder in (_CNI_STATE / "results", _CNI_STATE / "cache"):
        for path in _entries(folder):
            if path.name.startswith(f"{network}-") or _mentions(path, run.node):
                path.unlink()
    for path in _entries(_CONTAINER_LOGS):
        if path.is_symlink() and run.node in Path(os.readlink(path)).parents:
            path.unlink()
    for path in (*shim_sockets(run.node), _DEVICE_PLUGIN_SOCKET):
        path.unlink(missing_ok=True)
    for folder in _HOST_FOLDERS:
        # Only where it is empty: others may use it too.
        with contextlib.suppress(OSError):
            folder.rmdir()


def shim_sockets(node: Path) -> list[Path]:
    """Lists the sockets of containerd's shims, from the state of their containers."""
    found = []
    for path in node.glob("state/io.containerd.runtime.v2.task/*/*/bootstrap.json"):
        with contextlib.suppress(OSError, ValueError):
            address = str(json.loads(path.read_text()).get("address", ""))
            if address.startswith("unix://"):
                found.append(Path(address.removeprefix("unix://")))
    return found


def _entries(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _mentions(path: Path, words: Path) -> bool:
    return path.is_file() and str(words).encode() in path.read_bytes()
