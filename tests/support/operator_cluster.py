"""Objects of the api tier: what a user or a cluster has."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from support.eventually import eventually
from support.operator_process import Kubectl

GROUP = "enginecore.dev/v1alpha1"
WAIT = 40.0
"""Seconds within which what the operator is to do is done."""


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


@contextmanager
def refusing(kubectl: Kubectl, probe: dict[str, Any], resource: str) -> Iterator[None]:
    """Let an admission policy refuse a resource in a namespace, from when it refuses `probe`."""
    name, registration = f"{kubectl.namespace}-none", "admissionregistration.k8s.io/v1"
    group, _, version = probe["apiVersion"].rpartition("/")
    rule = {"apiGroups": [group], "apiVersions": [version], "resources": [resource]}
    policy = {
        "matchConstraints": {"resourceRules": [{**rule, "operations": ["CREATE"]}]},
        "validations": [{"expression": "false", "message": f"no {resource} here"}],
    }
    here = {"matchLabels": {"kubernetes.io/metadata.name": kubectl.namespace}}
    binding = {
        "policyName": name,
        "validationActions": ["Deny"],
        "matchResources": {"namespaceSelector": here},
    }
    kinds = {"ValidatingAdmissionPolicy": policy, "ValidatingAdmissionPolicyBinding": binding}
    kubectl.apply(
        *(
            {"apiVersion": registration, "kind": kind, "metadata": {"name": name}, "spec": spec}
            for kind, spec in kinds.items()
        )
    )
    try:
        eventually(lambda: f"no {resource} here" in kubectl.refused(probe), "it refuses", 40)
        yield
    finally:
        for kind in kinds:
            kubectl.run("delete", kind, name, "--ignore-not-found")


def wait_available(kubectl: Kubectl, replicas: int, deadline: float = WAIT) -> dict[str, Any]:
    """Wait until a cluster serves with so many engines of its present spec."""

    def available() -> dict[str, Any] | None:
        cluster = kubectl.get("enginecluster", "smollm")
        status = cluster.get("status", {})
        caught_up = status.get("observedGeneration") == cluster["metadata"]["generation"]
        counts = [status.get(f"{word}Replicas") for word in ("ready", "updated", "desired")]
        return status if caught_up and counts == [replicas] * 3 else None

    found = eventually(available, f"{replicas} engines are ready", deadline, interval=0.2)
    assert found is not None
    return found


def pods_of(kubectl: Kubectl, core: str) -> list[str]:
    """Return the names of an engine's pods that are not being deleted."""
    pods = kubectl.find_all("pods", f"enginecore.dev/core={core}")
    return [pod["metadata"]["name"] for pod in pods if "deletionTimestamp" not in pod["metadata"]]
