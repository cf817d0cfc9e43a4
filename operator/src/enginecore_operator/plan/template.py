"""Merge a user's pod template over the pod the operator builds."""

import posixpath
from collections.abc import Sequence
from typing import Any, Final

from enginecore_operator.api import labels
from enginecore_operator.api.podtemplate import PodTemplate
from enginecore_operator.api.schema import fields_of

_MERGED_APART: Final = ("security_context", "volumes", "init_containers", "containers")
_ADDED: Final = ("env",)
_MERGED: Final = ("securityContext",)
_REPLACEABLE: Final = (labels.SHM_VOLUME, labels.TMP_VOLUME)
"""Volumes of ours in whose place a template may mount one of its own, such as a larger one."""


def merge_template(pod: dict[str, Any], template: PodTemplate) -> dict[str, Any]:
    """Return the pod with the template merged over it; a template is checked beforehand.

    Maps are merged key by key, named lists by name, everything else is taken over.
    """
    metadata = dict(pod["metadata"])
    metadata["labels"] = {**template.metadata.labels, **metadata["labels"]}
    annotations = {**template.metadata.annotations, **metadata.get("annotations", {})}
    if annotations:
        metadata["annotations"] = annotations
    spec = dict(pod["spec"])
    for field in fields_of(type(template.spec)):
        value = getattr(template.spec, field.name)
        if value and field.name not in _MERGED_APART:
            spec[field.encode_name] = value
    spec["securityContext"] = {**spec["securityContext"], **template.spec.security_context}
    spec["volumes"] = [*spec["volumes"], *template.spec.volumes]
    init = [*spec.get("initContainers", ()), *template.spec.init_containers]
    if init:
        spec["initContainers"] = init
    spec["containers"] = _merge_containers(spec["containers"][0], template.spec.containers)
    spec["volumes"] = _without_replaced(spec)
    return {**pod, "metadata": metadata, "spec": spec}


def _merge_containers(
    engine: dict[str, Any], containers: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    merged = dict(engine)
    beside = []
    for container in containers:
        if container["name"] == labels.ENGINE_CONTAINER:
            merged = _merge_engine(merged, container)
        else:
            beside.append(container)
    return [merged, *beside]


def _merge_engine(engine: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(engine)
    for key, value in over.items():
        if value is None:
            continue
        if key == "volumeMounts":
            merged[key] = [*_without_places(merged.get(key, ()), value), *value]
        elif key in _ADDED:
            merged[key] = [*merged.get(key, ()), *value]
        elif key in _MERGED:
            merged[key] = {**merged.get(key, {}), **value}
        else:
            merged[key] = value
    return merged


def _without_places(
    ours: Sequence[dict[str, Any]], theirs: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return our mounts but for those in whose place the template mounts a volume of its own."""
    places = {posixpath.normpath(mount.get("mountPath", "")) for mount in theirs}
    return [
        mount
        for mount in ours
        if mount["name"] not in _REPLACEABLE or mount["mountPath"] not in places
    ]


def _without_replaced(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the volumes but for ours that nobody mounts any more."""
    containers = (*spec["containers"], *spec.get("initContainers", ()))
    mounted = {mount.get("name") for c in containers for mount in c.get("volumeMounts") or ()}
    return [v for v in spec["volumes"] if v["name"] not in _REPLACEABLE or v["name"] in mounted]
