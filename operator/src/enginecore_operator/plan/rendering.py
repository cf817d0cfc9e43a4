"""Settings of the operator that go into the objects it builds."""

from typing import Any

import msgspec

from enginecore_operator.api import labels
from enginecore_operator.plan.observed import ObjectMeta


class Rendering(msgspec.Struct, frozen=True, kw_only=True):
    """Default images and how they are pulled; `server_image` holds the engine server alone.

    The operator's pods are in `operator_namespace`.
    """

    torch_image: str
    vllm_image: str
    server_image: str
    coordinator_image: str
    operator_namespace: str
    image_pull_policy: str = "IfNotPresent"


USER_ID = 65532
"""User and group of all containers: `nonroot` of common base images."""


def pod_security_context() -> dict[str, Any]:
    """Security context of a pod under the restricted Pod Security Standard."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER_ID,
        "runAsGroup": USER_ID,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security_context() -> dict[str, Any]:
    """Security context of a container: no rights, and nothing to write but its volumes."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def owner_reference(kind: str, owner: ObjectMeta) -> dict[str, Any]:
    """Write the reference that makes the garbage collector delete a child with its owner."""
    return {
        "apiVersion": labels.API_VERSION,
        "kind": kind,
        "name": owner.name,
        "uid": owner.uid,
        "controller": True,
    }
