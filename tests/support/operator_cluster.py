"""Objects of the api tier: what a user or a cluster has."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from support.eventually import eventually
from support.operator_process import Kubectl

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
