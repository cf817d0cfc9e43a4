"""Build the Services of an EngineCluster."""

from typing import Any

from enginecore_operator.api import labels
from enginecore_operator.api.v1alpha1 import EngineClusterSpec
from enginecore_operator.plan import names
from enginecore_operator.plan.observed import ObjectMeta
from enginecore_operator.plan.rendering import owner_reference
from enginecore_wire.contract import HTTP_PORT, PUBLISH_PORT, REPORT_PORT


def build_engines_service(owner: ObjectMeta, spec: EngineClusterSpec) -> dict[str, Any]:
    """Build the headless Service that gives engines their names.

    It also names pods that are not Ready, as a starting engine tells clients its phase; the
    label `addressable` keeps a pod that is replaced out of it.
    """
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(owner, names.engines_service_name(owner.name), labels.ENGINE),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {labels.CLUSTER: owner.name, labels.ADDRESSABLE: "true"},
            "ports": [
                _port("input", spec.transport.input_port, "input"),
                _port("output", spec.transport.output_port, "output"),
                _port("http", spec.transport.http_port, "http"),
            ],
        },
    }


def build_coordinator_service(owner: ObjectMeta) -> dict[str, Any]:
    """Build the Service of the coordinator."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(owner, names.coordinator_name(owner.name), labels.COORDINATOR),
        "spec": {
            "selector": {labels.CLUSTER: owner.name, labels.COMPONENT: labels.COORDINATOR},
            "ports": [
                _port("report", REPORT_PORT, "report"),
                _port("publish", PUBLISH_PORT, "publish"),
                _port("http", HTTP_PORT, "http"),
            ],
        },
    }


def _metadata(owner: ObjectMeta, name: str, component: str) -> dict[str, Any]:
    return {
        "name": name,
        "namespace": owner.namespace,
        "labels": {
            **names.common_labels(owner.name),
            labels.CLUSTER: owner.name,
            labels.COMPONENT: component,
        },
        "ownerReferences": [owner_reference(labels.CLUSTER_KIND, owner)],
    }


def _port(name: str, port: int, target: str) -> dict[str, Any]:
    return {"name": name, "port": port, "targetPort": target, "protocol": "TCP"}
