"""The part of a pod's template that users may set; it is merged over the operator's pod."""

# ruff: noqa: RUF012 - msgspec makes a new list or dict of an empty default for each object

from typing import Annotated, Any

from msgspec import Meta

from enginecore_operator.api import schema
from enginecore_operator.api.labels import (
    ENGINE_CONTAINER,
    LABEL_PREFIX,
    RESERVED_INIT_CONTAINERS,
    RESERVED_VOLUMES,
)
from enginecore_operator.api.schema import Spec


class TemplateMetadata(Spec, frozen=True):
    """Labels and annotations added to the pod."""

    labels: Annotated[
        dict[str, Annotated[str, Meta(max_length=63)]],
        Meta(
            max_length=64,
            description=f"Labels; keys under {LABEL_PREFIX} are refused.",
            extra_json_schema=schema.no_reserved_keys(LABEL_PREFIX),
        ),
    ] = {}
    annotations: Annotated[
        dict[str, Annotated[str, Meta(max_length=65536)]],
        Meta(
            max_length=64,
            description=f"Annotations; keys under {LABEL_PREFIX} are refused.",
            extra_json_schema=schema.no_reserved_keys(LABEL_PREFIX),
        ),
    ] = {}


class TemplateSpec(Spec, frozen=True):
    """The part of a pod's spec that may be set; the rest is the operator's."""

    node_selector: Annotated[
        dict[str, Annotated[str, Meta(max_length=63)]],
        Meta(max_length=64, description="Labels the node must have."),
    ] = {}
    tolerations: Annotated[
        list[dict[str, Any]], Meta(max_length=64, description="Taints tolerated.")
    ] = []
    affinity: Annotated[
        dict[str, Any] | None, Meta(description="Node and pod affinity, as in a Pod.")
    ] = None
    topology_spread_constraints: Annotated[
        list[dict[str, Any]], Meta(max_length=16, description="As in a Pod.")
    ] = []
    priority_class_name: Annotated[str, Meta(max_length=253, description="As in a Pod.")] = ""
    runtime_class_name: Annotated[str, Meta(max_length=253, description="As in a Pod.")] = ""
    scheduler_name: Annotated[str, Meta(max_length=253, description="As in a Pod.")] = ""
    service_account_name: Annotated[
        str, Meta(max_length=253, description="As in a Pod; no token is mounted.")
    ] = ""
    image_pull_secrets: Annotated[
        list[dict[str, Any]], Meta(max_length=16, description="As in a Pod.")
    ] = []
    host_network: Annotated[
        bool,
        Meta(
            description="Use the node's network: clients reach the engine at the node's address, "
            "and its three ports of spec.transport must be free there. Engines of one cluster "
            "then need a node each."
        ),
    ] = False
    security_context: Annotated[
        dict[str, Any], Meta(description="Pod security context, merged over the operator's.")
    ] = {}
    volumes: Annotated[
        list[dict[str, Any]],
        Meta(
            max_length=32,
            description="Volumes added to the pod.",
            extra_json_schema=schema.named_objects(reserved=RESERVED_VOLUMES),
        ),
    ] = []
    init_containers: Annotated[
        list[dict[str, Any]],
        Meta(
            max_length=8,
            description="Containers run before the engine.",
            extra_json_schema=schema.named_objects(
                reserved=RESERVED_INIT_CONTAINERS, fields=schema.CONTAINER_FIELDS
            ),
        ),
    ] = []
    containers: Annotated[
        list[dict[str, Any]],
        Meta(
            max_length=8,
            description="Containers beside the engine. One named `engine` is merged over it: "
            "env and volumeMounts are added, imagePullPolicy, securityContext and lifecycle "
            "are taken over; everything else in it is refused.",
            extra_json_schema=schema.containers(ENGINE_CONTAINER),
        ),
    ] = []


class PodTemplate(Spec, frozen=True):
    """Merged over the pod the operator builds."""

    metadata: Annotated[TemplateMetadata, Meta(description="Labels and annotations.")] = (
        TemplateMetadata()
    )
    spec: Annotated[TemplateSpec, Meta(description="Scheduling, volumes, more containers.")] = (
        TemplateSpec()
    )
