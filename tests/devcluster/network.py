"""Addresses of a run, and the host's bridge, routes and packet filter."""

from __future__ import annotations

import ipaddress
import json
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from devcluster.errors import DevclusterError

BRIDGE = "ecdev0"
# Any route of a run comes before these.
_BLOCK_METRIC = "4096"
_LINK_SECONDS = 30.0
_PODS_TABLE = _PODS_RULE = "4096"
_SYSCTLS = Path("/proc/sys")
_NEEDED_SYSCTLS = {"net/ipv4/ip_forward": "1", "net/bridge/bridge-nf-call-iptables": "1"}
# Set by kubelet, kube-proxy and the CNI plugins of their own accord.
_TOUCHED_SYSCTLS = (
    "net/ipv4/conf/all/route_localnet",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)


@dataclass(frozen=True)
class NetworkPlan:
    """Where a run's servers, services and pods live.

    Attributes:
        server_address: IPv4 address the API server binds.
        services: CIDR of Services.
        pods: CIDR of pods on real nodes.
        node_pods: the part of it that belongs to this machine's node.
        kwok: CIDR from which kwok invents addresses.
    """

    server_address: str
    services: str = "10.96.0.0/24"
    pods: str = "10.244.0.0/16"
    node_pods: str = "10.244.0.0/24"
    kwok: str = "10.245.0.0/16"

    @property
    def routable(self) -> bool:
        """True where pods can reach the API server."""
        return not ipaddress.ip_address(self.server_address).is_loopback

    @property
    def blocked(self) -> tuple[str, ...]:
        """Ranges that must never leave this machine."""
        return (self.services, self.pods, self.kwok)

    @property
    def first_service(self) -> str:
        """The address of the Service ``kubernetes``."""
        return str(ipaddress.ip_network(self.services)[1])


API_PLAN = NetworkPlan(server_address="127.0.0.1")
NODE_PLAN = NetworkPlan(server_address="10.244.0.1")


def run_tool(*command: str, stdin: str | None = None) -> str:
    """Runs a network tool and returns what it prints.

    Raises:
        DevclusterError: it is missing or failed.
    """
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True, input=stdin)
    except FileNotFoundError:
        raise DevclusterError(f"the {command[0]} command is missing") from None
    except subprocess.CalledProcessError as error:
        raise DevclusterError(f"{' '.join(command)} failed: {error.stderr.strip()}") from error
    return done.stdout


def block_routes(cidrs: Sequence[str]) -> None:
    """Makes whole address ranges unreachable, but for the routes of a run.

    Invented and stale addresses of pods and Services then fail at once on this
    machine; without this they would leave it by the default route.  The routes
    stay when a run ends, because its clients may outlive it.

    Raises:
        DevclusterError: a range is in use here, or routes cannot be changed.
    """
    for cidr in cidrs:
        routes = json.loads(run_tool("ip", "-json", "-details", "route", "show", "exact", cidr))
        blocked = [route for route in routes if route.get("type") == "unreachable"]
        foreign = [route for route in routes if route not in blocked and route["dev"] != BRIDGE]
        if foreign:
            raise DevclusterError(
                f"{cidr} is routed to {foreign[0].get('dev')} on this machine: "
                "the dev cluster needs this range for itself"
            )
        if not blocked:
            run_tool("ip", "route", "add", "unreachable", cidr, "metric", _BLOCK_METRIC)


def unblock_routes(cidrs: Sequence[str]) -> None:
    """Takes back what `block_routes` did."""
    for cidr in cidrs:
        if run_tool("ip", "route", "show", "type", "unreachable", "exact", cidr).strip():
            run_tool("ip", "route", "delete", "unreachable", cidr)


def create_bridge(plan: NetworkPlan) -> None:
    """Makes the pods' bridge; the API server and CoreDNS bind its address."""
    length = plan.node_pods.partition("/")[2]
    run_tool("ip", "link", "add", BRIDGE, "type", "bridge")
    run_tool("ip", "address", "add", f"{plan.server_address}/{length}", "dev", BRIDGE)
    run_tool("ip", "link", "set", BRIDGE, "up")
    # Makes Services reachable from the host: its packets need a route before kube-proxy's
    # rules send them to a pod.
    run_tool("ip", "route", "add", plan.services, "dev", BRIDGE)


def close_bridge(plan: NetworkPlan) -> None:
    """Leads what pods send to pods and this machine alone; they have no business beyond it.

    This is a routing table's work, so that no rule of the packet filter, in which others write,
    comes before it.
    """
    run_tool("ip", "rule", "add", "priority", _PODS_RULE, "iif", BRIDGE, "lookup", _PODS_TABLE)
    run_tool("ip", "route", "add", plan.node_pods, "dev", BRIDGE, "table", _PODS_TABLE)
    run_tool("ip", "route", "add", "unreachable", "default", "table", _PODS_TABLE)


def pods_rules() -> list[str]:
    """Lists the rules that lead to the table of pods."""
    found = run_tool("ip", "rule", "show", "priority", _PODS_RULE).splitlines()
    return [rule for rule in found if f"iif {BRIDGE} " in rule]


def open_bridge() -> None:
    """Takes back what `close_bridge` did, as far as it came."""
    if pods_rules():
        # The table itself is gone with the bridge where nothing else was in it.
        subprocess.run(
            ["ip", "route", "flush", "table", _PODS_TABLE], capture_output=True, check=False
        )
        run_tool("ip", "rule", "delete", "priority", _PODS_RULE, "iif", BRIDGE)


def remove_bridge() -> None:
    """Removes the bridge and the host's ends of the pods' links, where they exist.

    Raises:
        DevclusterError: a link stays.
    """
    deadline = time.monotonic() + _LINK_SECONDS
    while own := _bridge_links():
        if time.monotonic() > deadline:
            raise DevclusterError(f"network link {own[0]} stays: ip link delete {own[0]}")
        for name in own:
            # The kernel may be faster: links of a pod that ended go on their own.
            subprocess.run(["ip", "link", "delete", name], capture_output=True, check=False)


def _bridge_links() -> list[str]:
    links = json.loads(run_tool("ip", "-json", "link", "show"))
    ports = [link["ifname"] for link in links if link.get("master") == BRIDGE]
    return ports + [BRIDGE for link in links if link["ifname"] == BRIDGE]


def read_sysctls(root: Path = _SYSCTLS) -> dict[str, str]:
    """Returns setting → value of everything a node may change.

    Raises:
        DevclusterError: the kernel lacks a setting that a node needs.
    """
    found = {}
    for name in (*_NEEDED_SYSCTLS, *_TOUCHED_SYSCTLS):
        path = root / name
        if path.exists():
            found[name] = path.read_text().strip()
        elif name in _NEEDED_SYSCTLS:
            raise DevclusterError(f"{path} is missing: load its kernel module (br_netfilter)")
    return found


def set_sysctls(root: Path = _SYSCTLS) -> None:
    """Sets what bridge and Services need."""
    for name, value in _NEEDED_SYSCTLS.items():
        (root / name).write_text(value)


def restore_sysctls(before: dict[str, str], root: Path = _SYSCTLS) -> None:
    """Takes back what changed since `read_sysctls`."""
    for name, value in before.items():
        path = root / name
        if path.exists() and path.read_text().strip() != value:
            path.write_text(value)
