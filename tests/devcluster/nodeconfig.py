"""Configuration files of the node's components, rendered from the run's facts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devcluster.locations import RunDirectory
from devcluster.network import BRIDGE, NetworkPlan
from devcluster.packages import CNI_PLUGINS

CGROUP_ROOT = "enginecore-devcluster"
CNI_NETWORK = "enginecore-devcluster"
PAUSE_IMAGE = "localhost/enginecore/pause:devcluster"
DOMAIN = "cluster.local"
_REVERSE_ZONES = "in-addr.arpa ip6.arpa"
_MAX_PODS = 200


@dataclass(frozen=True)
class NodePorts:
    """Ports of the node's own endpoints.

    Attributes:
        kubelet: kubelet's API, on the bridge's address.
        proxy_health: kube-proxy's health endpoint, on loopback.
        proxy_metrics: kube-proxy's metrics endpoint, on loopback.
        dns_ready: CoreDNS's readiness endpoint, on loopback.
    """

    kubelet: int
    proxy_health: int
    proxy_metrics: int
    dns_ready: int


def containerd_config(run: RunDirectory) -> str:
    """Renders containerd's configuration (TOML, version 3)."""
    return f"""\
version = 3
root = "{run.node}/containerd"
state = "{run.node}/state"
disabled_plugins = ["io.containerd.nri.v1.nri"]

[grpc]
address = "{containerd_socket(run)}"

[plugins."io.containerd.internal.v1.opt"]
path = "{run.node}/opt"

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{PAUSE_IMAGE}"

[plugins."io.containerd.cri.v1.runtime"]
# Root in a container may not lower scores; runc would die trying.
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
Root = "{run.node}/runc"

[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{CNI_PLUGINS}"]
conf_dir = "{run.path}/cni"
"""


def containerd_socket(run: RunDirectory) -> Path:
    """Where containerd listens."""
    return run.node / "containerd.sock"


def cni_config(run: RunDirectory, plan: NetworkPlan) -> str:
    """Renders the CNI chain: pods on one bridge, host ports by portmap."""
    bridge: dict[str, Any] = {
        "type": "bridge",
        "bridge": BRIDGE,
        "isGateway": True,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "dataDir": f"{run.node}/cni-addresses",
            "ranges": [[{"subnet": plan.node_pods, "gateway": plan.server_address}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    return _json(
        {
            "cniVersion": "1.0.0",
            "name": CNI_NETWORK,
            "plugins": [bridge, {"type": "portmap", "capabilities": {"portMappings": True}}],
        }
    )


def kubelet_config(run: RunDirectory, plan: NetworkPlan, ports: NodePorts) -> str:
    """Renders kubelet's configuration: its files below the run, its API for the server alone."""
    endpoint = f"unix://{containerd_socket(run)}"
    return _json(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": plan.server_address,
            "port": ports.kubelet,
            "readOnlyPort": 0,
            "healthzPort": 0,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": f"{run.pki}/ca.crt"},
            },
            "authorization": {"mode": "Webhook"},
            "containerRuntimeEndpoint": endpoint,
            "imageServiceEndpoint": endpoint,
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{CGROUP_ROOT}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "oomScoreAdj": 0,
            "makeIPTablesUtilChains": False,
            "clusterDNS": [plan.server_address],
            "clusterDomain": DOMAIN,
            # Pods see the cluster's names and nothing of the host's resolver.
            "resolvConf": "",
            "podLogsDir": f"{run.node}/pod-logs",
            "volumePluginDir": f"{run.node}/volume-plugins",
            "maxPods": _MAX_PODS,
            # Changes only are sent, so looking often costs the API server nothing.
            "nodeStatusUpdateFrequency": "2s",
            # A changed ConfigMap or Secret is in its pods' files in seconds, not after up to 90.
            "syncFrequency": "5s",
            # A volume over its limit is found in seconds, not after up to a minute.
            "volumeStatsAggPeriod": "5s",
            "serializeImagePulls": False,
            "kubeAPIQPS": 200,
            "kubeAPIBurst": 400,
            # The disk is shared with everything else on the machine.
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%"},
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
        }
    )


def kube_proxy_config(run: RunDirectory, plan: NetworkPlan, ports: NodePorts, node: str) -> str:
    """Renders kube-proxy's configuration; conntrack limits of the host stay as they are."""
    return _json(
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "clientConnection": {"kubeconfig": str(run.client_kubeconfig("kube-proxy"))},
            "mode": "iptables",
            "clusterCIDR": plan.pods,
            "hostnameOverride": node,
            "healthzBindAddress": f"127.0.0.1:{ports.proxy_health}",
            "metricsBindAddress": f"127.0.0.1:{ports.proxy_metrics}",
            "nodePortAddresses": [f"{plan.server_address}/32"],
            "iptables": {"localhostNodePorts": False, "minSyncPeriod": "0s"},
            "conntrack": {
                "maxPerCore": 0,
                "min": 0,
                "tcpEstablishedTimeout": "0s",
                "tcpCloseWaitTimeout": "0s",
            },
        }
    )


def corefile(run: RunDirectory, plan: NetworkPlan, ports: NodePorts) -> str:
    """Renders CoreDNS's configuration: the cluster's zones, and no such name elsewhere."""
    return f"""\
{DOMAIN} {_REVERSE_ZONES} {{
    bind {plan.server_address}
    errors
    ready 127.0.0.1:{ports.dns_ready}
    kubernetes {DOMAIN} {_REVERSE_ZONES} {{
        kubeconfig {run.client_kubeconfig("coredns")} {run.name}
    }}
}}
. {{
    bind {plan.server_address}
    template ANY ANY {{
        rcode NXDOMAIN
    }}
}}
"""


def kube_router_arguments(run: RunDirectory, plan: NetworkPlan, node: str) -> list[str]:
    """Renders kube-router's command line: it enforces NetworkPolicies, and nothing else."""
    return [
        f"--kubeconfig={run.client_kubeconfig('kube-router')}",
        f"--hostname-override={node}",
        f"--service-cluster-ip-range={plan.services}",
        "--run-firewall=true",
        "--run-router=false",
        "--run-service-proxy=false",
        "--run-loadbalancer=false",
        "--enable-cni=false",
        # Nobody asks its own endpoint, so it takes no port.
        "--health-port=0",
    ]


def reading_access() -> list[tuple[str, dict[str, Any]]]:
    """Returns (API path, resource) of what lets CoreDNS and kube-router read what they serve."""
    slices = {"discovery.k8s.io": ["endpointslices"]}
    core = ["services", "pods", "namespaces"]
    return [
        *_reading("devcluster:coredns", {"": core, **slices}),
        *_reading(
            "devcluster:kube-router",
            {
                "": [*core, "nodes", "endpoints"],
                **slices,
                "networking.k8s.io": ["networkpolicies"],
            },
        ),
    ]


def _reading(name: str, kinds: Mapping[str, list[str]]) -> list[tuple[str, dict[str, Any]]]:
    """Lets the user `name` read the resources of `kinds`, by API group."""
    group = "rbac.authorization.k8s.io"
    rules = [
        {"apiGroups": [of], "resources": plurals, "verbs": ["get", "list", "watch"]}
        for of, plurals in kinds.items()
    ]
    head = {"apiVersion": f"{group}/v1", "metadata": {"name": name}}
    base = f"/apis/{group}/v1"
    return [
        (f"{base}/clusterroles/{name}", {**head, "kind": "ClusterRole", "rules": rules}),
        (
            f"{base}/clusterrolebindings/{name}",
            {
                **head,
                "kind": "ClusterRoleBinding",
                "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
                "subjects": [{"apiGroup": group, "kind": "User", "name": name}],
            },
        ),
    ]


def _json(tree: dict[str, Any]) -> str:
    return json.dumps(tree, indent=1) + "\n"
