"""Build the Deployment of a cluster's coordinator."""

from typing import Any, Final

from enginecore_operator.api import labels
from enginecore_operator.api.devices import Resources
from enginecore_operator.api.lifecycle import MAX_REPLICAS
from enginecore_operator.api.transport import ClusterKeys
from enginecore_operator.api.v1alpha1 import COORDINATOR_REQUESTS, Coordinator
from enginecore_operator.plan import key_files, names
from enginecore_operator.plan.observed import ObjectMeta, ObservedObject
from enginecore_operator.plan.rendering import (
    Rendering,
    container_security_context,
    owner_reference,
    pod_security_context,
)
from enginecore_wire.contract import HEALTH_PATH, HTTP_PORT, PUBLISH_PORT, REPORT_PORT

STARTUP_SECONDS: Final = 300
"""How long a coordinator may take to answer its first probe, however busy the node is."""


def build_coordinator(
    owner: ObjectMeta,
    coordinator: Coordinator,
    rendering: Rendering,
    keys: ClusterKeys | None = None,
) -> dict[str, Any]:
    """Build the Deployment: one pod, as it holds the only copy of the present load.

    With CURVE, `keys` name where its own are; another public key makes another pod.
    """
    selector = {labels.CLUSTER: owner.name, labels.COMPONENT: labels.COORDINATOR}
    found = {**names.common_labels(owner.name), **selector}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": names.coordinator_name(owner.name),
            "namespace": owner.namespace,
            "labels": found,
            "ownerReferences": [owner_reference(labels.CLUSTER_KIND, owner)],
        },
        "spec": {
            "replicas": 1,
            "revisionHistoryLimit": 2,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": selector},
            "template": {
                "metadata": {"labels": found, **_key_annotation(keys)},
                "spec": {
                    "enableServiceLinks": False,
                    "automountServiceAccountToken": False,
                    "terminationGracePeriodSeconds": 5,
                    "securityContext": pod_security_context(),
                    "containers": [_container(coordinator, rendering, secured=keys is not None)],
                    **({"volumes": key_files.volumes(keys, key_files.COORDINATOR)} if keys else {}),
                },
            },
        },
    }


def deployed_key(owner: ObjectMeta, there: ObservedObject | None) -> str:
    """Return the public key of the coordinator that is there; empty where it has none of ours."""
    if there is None or not there.metadata.is_controlled_by(owner.uid):
        return ""
    template = there.raw.get("spec", {}).get("template", {}).get("metadata", {})
    found: dict[str, str] = template.get("annotations") or {}
    return found.get(labels.SERVER_KEY, "")


def _key_annotation(keys: ClusterKeys | None) -> dict[str, Any]:
    return {"annotations": {labels.SERVER_KEY: keys.public_key}} if keys else {}


def _container(coordinator: Coordinator, rendering: Rendering, *, secured: bool) -> dict[str, Any]:
    probe = {"httpGet": {"path": HEALTH_PATH, "port": "http"}}
    arguments = ["--max-ranks", str(MAX_REPLICAS)]
    return {
        "name": labels.COORDINATOR,
        "image": coordinator.image or rendering.coordinator_image,
        "imagePullPolicy": rendering.image_pull_policy,
        "command": ["enginecore-coordinator"],
        "args": [*arguments, *key_files.coordinator_arguments()] if secured else arguments,
        "ports": [
            {"name": "report", "containerPort": REPORT_PORT, "protocol": "TCP"},
            {"name": "publish", "containerPort": PUBLISH_PORT, "protocol": "TCP"},
            {"name": "http", "containerPort": HTTP_PORT, "protocol": "TCP"},
        ],
        "resources": _resources(coordinator.resources),
        "securityContext": container_security_context(),
        **({"volumeMounts": key_files.mounts()} if secured else {}),
        # Liveness begins once this one has succeeded: a slow start is no reason to be killed.
        "startupProbe": {
            **probe,
            "periodSeconds": 1,
            "timeoutSeconds": 2,
            "failureThreshold": STARTUP_SECONDS,
        },
        "readinessProbe": {**probe, "periodSeconds": 2, "timeoutSeconds": 2},
        "livenessProbe": {
            **probe,
            "periodSeconds": 10,
            "timeoutSeconds": 5,
            "failureThreshold": 6,
        },
    }


def _resources(given: Resources) -> dict[str, Any]:
    """Return what is given, and a request for what it leaves open: never BestEffort."""
    # A limit without a request is a request, too.
    defaults = {k: v for k, v in COORDINATOR_REQUESTS.items() if k not in given.limits}
    found = {"requests": {**defaults, **given.requests}, "limits": dict(given.limits)}
    return {key: value for key, value in found.items() if value}
