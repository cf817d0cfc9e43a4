"""The address plan, and kernel settings that are put back."""

import ipaddress
from pathlib import Path

import pytest

from devcluster import network
from devcluster.errors import DevclusterError


def test_ranges_of_a_plan_are_apart_and_private() -> None:
    ranges = [ipaddress.ip_network(cidr) for cidr in network.NODE_PLAN.blocked]
    assert all(cidr.is_private for cidr in ranges)
    pairs = [(a, b) for a in ranges for b in ranges if a is not b]
    assert not any(a.overlaps(b) for a, b in pairs)


def test_node_lives_in_the_pods_range() -> None:
    plan = network.NODE_PLAN
    node_pods = ipaddress.ip_network(plan.node_pods)
    assert node_pods.subnet_of(ipaddress.ip_network(plan.pods))  # type: ignore[arg-type]
    assert ipaddress.ip_address(plan.server_address) in node_pods
    assert plan.first_service == "10.96.0.1"


@pytest.mark.parametrize(
    ("plan", "routable"), [(network.API_PLAN, False), (network.NODE_PLAN, True)]
)
def test_loopback_is_not_routable(plan: network.NetworkPlan, routable: bool) -> None:
    assert plan.routable is routable


@pytest.fixture
def sysctls(tmp_path: Path) -> Path:
    for name in ("net/ipv4/ip_forward", "net/bridge/bridge-nf-call-iptables", "kernel/panic"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("0\n")
    return tmp_path


def test_settings_are_put_back(sysctls: Path) -> None:
    before = network.read_sysctls(sysctls)
    network.set_sysctls(sysctls)
    assert (sysctls / "net/ipv4/ip_forward").read_text() == "1"
    (sysctls / "kernel/panic").write_text("10\n")
    network.restore_sysctls(before, sysctls)
    files = [path for path in sysctls.rglob("*") if path.is_file()]
    assert {path.read_text().strip() for path in files} == {"0"}


def test_missing_kernel_module_is_named(sysctls: Path) -> None:
    (sysctls / "net/bridge/bridge-nf-call-iptables").unlink()
    with pytest.raises(DevclusterError, match="br_netfilter"):
        network.read_sysctls(sysctls)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("no-such-tool",), "the no-such-tool command is missing"),
        (("ls", "/no/such/file"), "ls /no/such/file failed: .*No such file"),
    ],
)
def test_tool_that_fails_says_why(command: tuple[str, ...], message: str) -> None:
    with pytest.raises(DevclusterError, match=message):
        network.run_tool(*command)
