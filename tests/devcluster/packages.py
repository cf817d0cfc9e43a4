"""Debian packages whose programs the dev cluster runs."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from devcluster.errors import DevclusterError
from devcluster.locks import Progress

CNI_PLUGINS = Path("/usr/lib/cni")
NODE_PACKAGES = (
    "containernetworking-plugins",
    "runc",
    "iptables",
    "ipset",
    "conntrack",
    "iproute2",
)
IMAGE_PACKAGES = ("buildah", "mmdebstrap")
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PROGRAM_OF = {
    "containernetworking-plugins": str(CNI_PLUGINS / "bridge"),
    "runc": "runc",
    "iptables": "iptables",
    "ipset": "ipset",
    "conntrack": "conntrack",
    "iproute2": "ip",
    "buildah": "buildah",
    "mmdebstrap": "mmdebstrap",
}


def missing_packages(packages: Iterable[str]) -> list[str]:
    """Returns those packages whose program is not installed."""
    return [
        package
        for package in packages
        if shutil.which(_PROGRAM_OF[package], path=_SYSTEM_PATH) is None
    ]


def ensure_packages(packages: Iterable[str], progress: Progress) -> None:
    """Installs what is missing with apt-get.

    Raises:
        DevclusterError: this user or machine cannot install packages.
    """
    missing = missing_packages(packages)
    if not missing:
        return
    command = f"apt-get install {' '.join(missing)}"
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise DevclusterError(f"programs are missing; as root on Debian run: {command}")
    progress(f"installing Debian packages: {' '.join(missing)}")
    for arguments in (["update"], ["install", "--yes", "--no-install-recommends", *missing]):
        done = subprocess.run(
            ["apt-get", "--quiet", *arguments],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
        )
        if done.returncode != 0:
            raise DevclusterError(f"{command} failed: {done.stderr.strip()[-1500:]}")
