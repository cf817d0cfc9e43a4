"""The rights the operator needs, no more: what an installation grants its service account."""

from typing import Any, Final

from enginecore_operator.api.labels import GROUP

CLUSTER_RULES: Final[list[dict[str, Any]]] = [
    {
        "apiGroups": [GROUP],
        "resources": ["engineclusters"],
        "verbs": ["get", "list", "watch"],
    },
    {
        "apiGroups": [GROUP],
        "resources": ["enginecores"],
        "verbs": ["get", "list", "watch", "create", "patch", "delete"],
    },
    {
        "apiGroups": [GROUP],
        "resources": ["engineclusters/status", "enginecores/status"],
        "verbs": ["patch"],
    },
    {
        "apiGroups": [""],
        "resources": ["pods"],
        "verbs": ["get", "list", "watch", "create", "patch", "delete"],
    },
    {
        "apiGroups": [""],
        "resources": ["configmaps"],
        "verbs": ["get", "list", "watch", "create", "patch"],
    },
    {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "create", "patch"]},
    {
        "apiGroups": [""],
        "resources": ["services"],
        "verbs": ["get", "list", "watch", "create", "patch", "delete"],
    },
    {
        "apiGroups": ["networking.k8s.io"],
        "resources": ["networkpolicies"],
        "verbs": ["get", "list", "watch", "create", "patch", "delete"],
    },
    {
        "apiGroups": ["apps"],
        "resources": ["deployments"],
        "verbs": ["get", "list", "watch", "create", "patch"],
    },
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "list"]},
]
"""In the namespaces served; nodes need a ClusterRole in any case."""

LEASE_RULES: Final[list[dict[str, Any]]] = [
    {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "verbs": ["get", "create", "update"],
    },
]
"""In the operator's own namespace."""
