"""Everything a node could leave on the host outside its run's directory."""

import json
from dataclasses import dataclass
from pathlib import Path

from devcluster import network, nodeconfig, packetfilter, teardown
from devcluster.locations import RunDirectory
from devcluster.processes import marked_processes

PROGRAM_FILES = ("/var/lib/cni", "/var/lib/kubelet", "/var/log/containers", "/run/containerd")


@dataclass(frozen=True)
class HostTraces:
    """The host as one run could have changed it; equal where nothing of it is left."""

    links: tuple[str, ...]
    rules: tuple[str, ...]
    sets: tuple[str, ...]
    routing: tuple[str, ...]
    cgroups: tuple[Path, ...]
    mounts: tuple[Path, ...]
    processes: tuple[int, ...]
    files: tuple[Path, ...]
    forwarding: str

    @classmethod
    def of(cls, run: RunDirectory) -> "HostTraces":
        """Look at the host now."""
        links = json.loads(network.run_tool("ip", "-json", "link", "show"))
        mountinfo = Path("/proc/self/mountinfo").read_text()
        rules = "".join(packetfilter.saved_rules().values())
        return cls(
            links=tuple(link["ifname"] for link in links),
            rules=tuple(filter(_is_ours, rules.splitlines())),
            sets=tuple(packetfilter.own_sets()),
            routing=tuple(network.pods_rules()),
            cgroups=tuple(teardown.cgroup_directories(nodeconfig.CGROUP_ROOT)),
            mounts=tuple(teardown.mounts_below(mountinfo, [run.path, run.node])),
            processes=tuple(identity.pid for identity in marked_processes(run.path)),
            files=tuple(p for p in (*map(Path, PROGRAM_FILES), run.node) if p.exists()),
            forwarding=Path("/proc/sys/net/ipv4/ip_forward").read_text(),
        )


def _is_ours(rule: str) -> bool:
    return any(prefix in rule for prefix in packetfilter.OWN_PREFIXES)
