"""Objects of the api tier: what a user or a cluster has."""

from typing import Any

GROUP = "enginecore.dev/v1alpha1"


def fake_node(name: str, **labels: str) -> dict[str, Any]:
    """Return a node that kwok plays."""
    meta = {"name": name, "annotations": {"kwok.x-k8s.io/node": "fake"}, "labels": labels}
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta}


def engine_cluster(name: str = "smollm", **spec: Any) -> dict[str, Any]:
    """Return an EngineCluster on CPUs."""
    full = {"model": {"name": "tiny"}, "accelerator": {"count": 0}, **spec}
    return {"apiVersion": GROUP, "kind": "EngineCluster", "metadata": {"name": name}, "spec": full}


def engine_core(name: str = "solo", **spec: Any) -> dict[str, Any]:
    """Return an EngineCore that belongs to no cluster."""
    full = {"model": {"name": "tiny"}, "accelerator": {"count": 0}, **spec}
    return {"apiVersion": GROUP, "kind": "EngineCore", "metadata": {"name": name}, "spec": full}
