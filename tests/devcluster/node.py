"""The node: containerd, kubelet, kube-proxy, CoreDNS and kube-router on this machine."""

from __future__ import annotations

import subprocess
import tarfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from devcluster import nodeconfig, packetfilter
from devcluster.controlplane import ControlPlane, Run
from devcluster.errors import DevclusterError
from devcluster.kubeapi import answers
from devcluster.locations import RunDirectory
from devcluster.nodeconfig import NodePorts
from devcluster.ociarchive import ImageConfig, image_digests, single_file_layer, write_archive
from devcluster.ports import free_ports
from devcluster.processes import wait_until

_CONTAINERD_SECONDS = 90.0
_NODE_SECONDS = 240.0
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def start_containerd(run: Run) -> None:
    """Starts containerd and gives it the pause image.

    Raises:
        DevclusterError: it did not answer or did not take the image.
    """
    directory = run.directory
    directory.node.mkdir(parents=True, exist_ok=True)
    config = directory.path / "containerd.toml"
    config.write_text(nodeconfig.containerd_config(directory))
    cni = directory.path / "cni"
    cni.mkdir()
    (cni / "10-bridge.conflist").write_text(nodeconfig.cni_config(directory, run.plan))
    # The shim is looked up on PATH, and runc by the shim.
    path = f"{run.programs['containerd-shim-runc-v2'].parent}:{_SYSTEM_PATH}"
    run.start("containerd", ["--config", config], path=path)
    wait_until(
        lambda: ctr(directory, run.programs, "version").returncode == 0,
        what="containerd answers",
        seconds=_CONTAINERD_SECONDS,
        needs=run.needs("containerd"),
    )
    archive = directory.path / "pause.tar"
    layer = directory.path / "pause.layer"
    single_file_layer(run.programs["pause"], layer)
    write_archive(layer, archive, nodeconfig.PAUSE_IMAGE, ImageConfig(entrypoint=["/pause"]))
    load_image(directory, run.programs, archive)
    layer.unlink()
    archive.unlink()


def start(run: Run, plane: ControlPlane, name: str) -> None:
    """Starts kubelet, kube-proxy, CoreDNS and kube-router, and waits until pods can run.

    Args:
        run: the run; its containerd and its controllers are up.
        plane: its control plane.
        name: name of the node.

    Raises:
        DevclusterError: one of them did not become ready.
    """
    address = run.plan.server_address
    (kubelet,) = free_ports(1, address)
    ports = NodePorts(kubelet, *free_ports(3))
    _start_kubelet(run, ports, name)
    _start_kube_proxy(run, ports, name)
    for path, resource in nodeconfig.reading_access():
        plane.api.apply(path, resource)
    corefile = run.directory.path / "Corefile"
    corefile.write_text(nodeconfig.corefile(run.directory, run.plan, ports))
    run.start("coredns", ["-conf", corefile])
    health = f"http://127.0.0.1:{ports.proxy_health}/healthz"
    conditions = {
        "the node is Ready": partial(_is_ready, plane, name),
        "kube-proxy wrote its rules": partial(answers, health),
        "CoreDNS is ready": partial(answers, f"http://127.0.0.1:{ports.dns_ready}/ready"),
    }
    for what, condition in conditions.items():
        needs = run.needs("kubelet", "kube-proxy", "coredns")
        wait_until(condition, what=what, seconds=_NODE_SECONDS, needs=needs)
    _start_kube_router(run, name)


def _start_kubelet(run: Run, ports: NodePorts, name: str) -> None:
    directory = run.directory
    config = directory.path / "kubelet.json"
    config.write_text(nodeconfig.kubelet_config(directory, run.plan, ports))
    run.start(
        "kubelet",
        [
            f"--config={config}",
            f"--kubeconfig={directory.client_kubeconfig('kubelet')}",
            f"--root-dir={directory.node}/kubelet",
            f"--cert-dir={directory.node}/kubelet-pki",
            f"--hostname-override={name}",
            f"--node-ip={run.plan.server_address}",
        ],
        path=_SYSTEM_PATH,
    )


def _start_kube_proxy(run: Run, ports: NodePorts, name: str) -> None:
    config = run.directory.path / "kube-proxy.json"
    config.write_text(nodeconfig.kube_proxy_config(run.directory, run.plan, ports, name))
    run.start("kube-proxy", [f"--config={config}"], path=_SYSTEM_PATH)


def _start_kube_router(run: Run, name: str) -> None:
    """Starts what enforces NetworkPolicies: it ends at once where its node is not there yet."""
    arguments = nodeconfig.kube_router_arguments(run.directory, run.plan, name)
    tools = run.directory.path / "kube-router"
    packetfilter.link_legacy_tools(tools)
    run.start("kube-router", arguments, path=f"{tools}:{_SYSTEM_PATH}")
    wait_until(
        packetfilter.enforces_policies,
        what="NetworkPolicies are enforced",
        seconds=_NODE_SECONDS,
        needs=run.needs("kube-router"),
    )


def _is_ready(plane: ControlPlane, name: str) -> bool:
    node = plane.api.get(f"/api/v1/nodes/{name}")
    return node is not None and node_is_ready(node)


def node_is_ready(node: Mapping[str, Any]) -> bool:
    """True where a Node object says Ready and may be scheduled to."""
    conditions = node.get("status", {}).get("conditions", [])
    ready = any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)
    return ready and not node["spec"].get("taints")


def advertise_gpus(run: Run, plane: ControlPlane, name: str, count: int) -> None:
    """Makes the scheduler count GPUs that are not there; no device plugin is needed.

    Raises:
        DevclusterError: the kubelet did not take them over.
    """
    path = "/status/capacity/nvidia.com~1gpu"
    operation = {"op": "add", "path": path, "value": str(count)}
    plane.api.patch(f"/api/v1/nodes/{name}/status", [operation])
    wait_until(
        lambda: allocatable_gpus(plane.api.get(f"/api/v1/nodes/{name}")) == count,
        what=f"the node's {count} GPUs are allocatable",
        seconds=_NODE_SECONDS,
        needs=run.needs("kubelet"),
    )


def allocatable_gpus(node: Mapping[str, Any]) -> int:
    """Returns how many GPUs of a Node object the scheduler may give away."""
    return int(node["status"].get("allocatable", {}).get("nvidia.com/gpu", 0))


def ctr(
    directory: RunDirectory, programs: Mapping[str, Path], *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Runs containerd's command line on the images and containers of Kubernetes."""
    socket = nodeconfig.containerd_socket(directory)
    return subprocess.run(
        [programs["ctr"], "--address", socket, "--namespace", "k8s.io", *arguments],
        capture_output=True,
        text=True,
    )


def load_image(directory: RunDirectory, programs: Mapping[str, Path], archive: Path) -> list[str]:
    """Imports an OCI or docker archive into the node, if the node lacks an image of it.

    Returns:
        Full names of the images in the archive, as far as it tells.

    Raises:
        DevclusterError: the archive is missing or damaged, or the node is down.
    """
    try:
        wanted = image_digests(archive)
    except (OSError, tarfile.TarError) as error:
        raise DevclusterError(f"image archive {archive} cannot be read: {error}") from error
    listed = ctr(directory, programs, "images", "list")
    if not wanted or not wanted.items() <= listed_digests(listed.stdout).items():
        done = ctr(directory, programs, "images", "import", str(archive))
        if done.returncode != 0:
            raise DevclusterError(f"importing {archive} failed: {done.stderr.strip()}")
    return list(wanted)


def listed_digests(table: str) -> dict[str, str]:
    """Parses the table of ``ctr images list``: image name → digest."""
    rows = [line.split() for line in table.splitlines()[1:]]
    return {row[0]: row[2] for row in rows if len(row) > 2}
