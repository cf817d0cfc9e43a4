"""Addresses of a run, and the host's bridge, routes and packet filter."""

from __future__ import annotations

import ipaddress
import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from devcluster.errors import DevclusterError

BRIDGE = "ecdev0"


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
    """Makes whole address ranges unreachable, but for more specific routes.

    Invented and stale addresses of pods and Services then fail at once on this
    machine; without this they would leave it by the default route.  The routes
    stay when a run ends, because its clients may outlive it.

    Raises:
        DevclusterError: a range is in use here, or routes cannot be changed.
    """
    for cidr in cidrs:
        routes = json.loads(run_tool("ip", "-json", "-details", "route", "show", "exact", cidr))
        foreign = [route for route in routes if route.get("type") != "unreachable"]
        if foreign:
            raise DevclusterError(
                f"{cidr} is routed to {foreign[0].get('dev')} on this machine: "
                "the dev cluster needs this range for itself"
            )
        if not routes:
            run_tool("ip", "route", "add", "unreachable", cidr)


def unblock_routes(cidrs: Sequence[str]) -> None:
    """Takes back what `block_routes` did."""
    for cidr in cidrs:
        if run_tool("ip", "route", "show", "type", "unreachable", "exact", cidr).strip():
            run_tool("ip", "route", "delete", "unreachable", cidr)
