"""Merge a user's pod template over the pod the operator builds."""

from typing import Any, Final

from enginecore_operator.api import labels
from enginecore_operator.api.podtemplate import PodTemplate
from enginecore_operator.api.schema import fields_of

_MERGED_APART: Final = ("security_context", "volumes", "init_containers", "containers")
_ADDED: Final = ("env", "volumeMounts")
_MERGED: Final = ("securityContext",)


def merge_template(pod: dict[str, Any], template: PodTemplate) -> dict[str, Any]:
    """Return the pod with the template merged over it; a template is checked beforehand.

    Maps are merged key by key, named lists by name, everything else is taken over.
    """
    metadata = dict(pod["metadata"])
    metadata["labels"] = {**template.metadata.labels, **metadata["labels"]}
    if template.metadata.annotations:
        metadata["annotations"] = dict(template.metadata.annotations)
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
        if key in _ADDED:
            merged[key] = [*merged.get(key, ()), *value]
        elif key in _MERGED:
            merged[key] = {**merged.get(key, {}), **value}
        else:
            merged[key] = value
    return merged
