"""Configuration files name the run's own paths, addresses and ports."""

import json
import tomllib
from pathlib import Path

import pytest

from devcluster import controlplane, nodeconfig
from devcluster.locations import RunDirectory
from devcluster.network import API_PLAN, NODE_PLAN, NetworkPlan
from devcluster.nodeconfig import NodePorts
from devcluster.pki import Pki

RUN = RunDirectory(Path("/state/n1"))
PORTS = NodePorts(kubelet=4001, proxy_health=4002, proxy_metrics=4003, dns_ready=4004)
HOST_PATHS = ("/run/containerd", "/var/lib/kubelet", "/var/lib/containerd", "/etc/cni", "/opt")


def rendered() -> dict[str, str]:
    return {
        "containerd": nodeconfig.containerd_config(RUN),
        "cni": nodeconfig.cni_config(RUN, NODE_PLAN),
        "kubelet": nodeconfig.kubelet_config(RUN, NODE_PLAN, PORTS),
        "kube-proxy": nodeconfig.kube_proxy_config(RUN, NODE_PLAN, PORTS, "n1"),
        "coredns": nodeconfig.corefile(RUN, NODE_PLAN, PORTS),
    }


@pytest.mark.parametrize("component", rendered())
def test_no_configuration_names_a_path_of_another_cluster(component: str) -> None:
    text = rendered()[component]
    assert not [path for path in HOST_PATHS if f'"{path}' in text]


def test_containerd_keeps_to_the_run() -> None:
    config = tomllib.loads(rendered()["containerd"])
    assert config["version"] == 3
    paths = (config["root"], config["state"], config["grpc"]["address"])
    assert all(Path(path).is_relative_to(RUN.node) for path in paths)
    images = config["plugins"]["io.containerd.cri.v1.images"]
    assert images["pinned_images"]["sandbox"] == nodeconfig.PAUSE_IMAGE
    assert config["plugins"]["io.containerd.cri.v1.runtime"]["restrict_oom_score_adj"] is True


def test_pods_live_on_the_bridge_in_the_nodes_range() -> None:
    bridge, portmap = json.loads(rendered()["cni"])["plugins"]
    assert bridge["ipam"]["ranges"] == [[{"subnet": "10.244.0.0/24", "gateway": "10.244.0.1"}]]
    assert portmap["type"] == "portmap"


def test_kubelet_answers_only_whom_the_api_server_vouches_for() -> None:
    config = json.loads(rendered()["kubelet"])
    assert config["authentication"]["anonymous"] == {"enabled": False}
    assert config["authorization"] == {"mode": "Webhook"}
    assert (config["address"], config["port"], config["readOnlyPort"]) == ("10.244.0.1", 4001, 0)
    assert config["cgroupRoot"] == f"/{nodeconfig.CGROUP_ROOT}"
    assert config["clusterDNS"] == ["10.244.0.1"]


def test_kube_proxy_serves_no_node_port_beyond_the_bridge() -> None:
    config = json.loads(rendered()["kube-proxy"])
    assert config["nodePortAddresses"] == ["10.244.0.1/32"]
    assert config["healthzBindAddress"] == "127.0.0.1:4002"
    assert config["metricsBindAddress"] == "127.0.0.1:4003"


def test_coredns_binds_the_bridge_and_forwards_nothing() -> None:
    text = rendered()["coredns"]
    assert text.count("bind 10.244.0.1\n") == 2
    assert "ready 127.0.0.1:4004" in text
    assert "forward" not in text


@pytest.mark.parametrize("component", ["coredns", "kube-router"])
def test_who_serves_pods_may_only_read(component: str) -> None:
    name = f"devcluster:{component}"
    access = [item for path, item in nodeconfig.reading_access() if path.endswith(f"/{name}")]
    role, binding = access
    assert {verb for rule in role["rules"] for verb in rule["verbs"]} == {"get", "list", "watch"}
    assert binding["roleRef"]["name"] == binding["subjects"][0]["name"] == name


def test_kube_router_enforces_policies_and_does_nothing_else() -> None:
    arguments = nodeconfig.kube_router_arguments(RUN, NODE_PLAN, "n1")
    assert [a for a in arguments if a.startswith("--run-") and a.endswith("=true")] == [
        "--run-firewall=true"
    ]
    assert {"--enable-cni=false", "--health-port=0", "--hostname-override=n1"} <= set(arguments)


@pytest.mark.parametrize(
    ("plan", "address", "reconciler"),
    [(API_PLAN, "127.0.0.1", "none"), (NODE_PLAN, "10.244.0.1", "lease")],
)
def test_api_server_listens_on_the_plans_address_alone(
    plan: NetworkPlan, address: str, reconciler: str
) -> None:
    arguments = controlplane.apiserver_arguments(
        RUN, Pki(RUN.pki), plan, etcd="http://127.0.0.1:1", port=2
    )
    assert {
        f"--bind-address={address}",
        f"--advertise-address={address}",
        f"--endpoint-reconciler-type={reconciler}",
        "--secure-port=2",
        "--authorization-mode=Node,RBAC",
    } <= set(arguments)


@pytest.mark.parametrize(("plan", "allocates"), [(API_PLAN, False), (NODE_PLAN, True)])
def test_only_a_plan_with_pods_gets_pod_ranges(plan: NetworkPlan, allocates: bool) -> None:
    arguments = controlplane.controller_manager_arguments(RUN, Pki(RUN.pki), plan)
    assert ("--allocate-node-cidrs" in arguments) is allocates


def test_etcd_speaks_on_the_given_addresses_alone() -> None:
    arguments = controlplane.etcd_arguments(Path("/d"), "http://127.0.0.1:1", "http://127.0.0.1:2")
    urls = {word.split("http", 1)[1] for word in arguments if "http" in word}
    assert urls == {"://127.0.0.1:1", "://127.0.0.1:2"}
