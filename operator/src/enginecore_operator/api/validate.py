"""Checks of a spec at reconcile time: objects stored before a rule existed meet them here.

Admission (the CRD's schema and CEL) refuses the same things with the same paths.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from enginecore_operator.api import labels
from enginecore_operator.api.podtemplate import PodTemplate
from enginecore_operator.api.schema import ENGINE_FIELDS, NAME_SCHEMA, fields_of
from enginecore_operator.api.v1alpha1 import EngineCoreSpec, EngineTemplate
from enginecore_wire.public_keys import is_key

SpecT = TypeVar("SpecT", bound=EngineTemplate)

_NAME = re.compile(str(NAME_SCHEMA["pattern"]))


class InvalidSpecError(ValueError):
    """A spec breaks a rule; the message names each field by its path and says what is wrong."""


def read_spec(raw: dict[str, Any], kind: type[SpecT]) -> SpecT:
    """Decode a spec and check it. Raises InvalidSpecError."""
    try:
        spec = msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$")
        raise InvalidSpecError(f"spec{path.rstrip('`')}: {message}") from error
    problems = [
        *_broken_rules(spec, "spec"),
        *_template_problems(spec.pod_template),
        *_key_problems(spec),
    ]
    if problems:
        raise InvalidSpecError("; ".join(problems))
    return spec


def _broken_rules(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, msgspec.Struct):
        for rule in getattr(value, "rules", ()):
            if not rule.holds(value):
                yield f"{path}{rule.field}: {rule.message}"
        for field in fields_of(type(value)):
            yield from _broken_rules(getattr(value, field.name), f"{path}.{field.encode_name}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _broken_rules(item, f"{path}[{index}]")


def _key_problems(spec: EngineTemplate) -> Iterator[str]:
    """Name what has a key's characters and is none, which no schema can tell."""
    found = {
        f"keys.{role}[{index}]": key
        for role, listed in (("infer", spec.keys.infer), ("admin", spec.keys.admin))
        for index, key in enumerate(listed)
    }
    if isinstance(spec, EngineCoreSpec):
        if spec.coordinator_key:
            found["coordinatorKey"] = spec.coordinator_key
        if spec.cluster_keys is not None:
            found["clusterKeys.publicKey"] = spec.cluster_keys.public_key
    for path, key in found.items():
        if not is_key(key):
            yield f"spec.{path}: no public key: a group of five is too large"


def _template_problems(template: PodTemplate) -> Iterator[str]:
    path = "spec.podTemplate"
    for name, keys in (
        ("labels", template.metadata.labels),
        ("annotations", template.metadata.annotations),
    ):
        for key in keys:
            if key.startswith(labels.LABEL_PREFIX):
                yield f"{path}.metadata.{name}[{key}]: the operator's own key"
    spec = template.spec
    yield from _name_problems(f"{path}.spec.volumes", spec.volumes, labels.RESERVED_VOLUMES)
    for field, containers, reserved in (
        ("initContainers", spec.init_containers, labels.RESERVED_INIT_CONTAINERS),
        ("containers", spec.containers, ()),
    ):
        yield from _name_problems(f"{path}.spec.{field}", containers, reserved)
        for index, container in enumerate(containers):
            place = f"{path}.spec.{field}[{index}]"
            wrong = list(_type_problems(place, container))
            yield from wrong
            if container.get("name") == labels.ENGINE_CONTAINER and not wrong:
                yield from _engine_problems(place, container)


def _name_problems(
    path: str, objects: Sequence[dict[str, Any]], reserved: Sequence[str]
) -> Iterator[str]:
    seen: set[str] = set()
    for index, item in enumerate(objects):
        name = item.get("name")
        if not isinstance(name, str) or not _NAME.match(name):
            yield f"{path}[{index}].name: must be a DNS label"
        elif name in reserved:
            yield f"{path}[{index}].name: {name} is the operator's own"
        elif name in seen:
            yield f"{path}[{index}].name: {name} is there twice"
        else:
            seen.add(name)


def _type_problems(path: str, container: dict[str, Any]) -> Iterator[str]:
    """Name what is of another type than schema.CONTAINER_FIELDS says; null is as good as absent,
    for which API servers take it once they know the field.
    """
    for field in ("env", "volumeMounts"):
        if container.get(field) is None:
            continue
        if not isinstance(container[field], list):
            yield f"{path}.{field}: must be a list"
            continue
        for index, item in enumerate(container[field]):
            if not isinstance(item, dict):
                yield f"{path}.{field}[{index}]: must be an object"
            elif field == "volumeMounts":
                for text in ("name", "mountPath"):
                    if not isinstance(item.get(text, ""), str):
                        yield f"{path}.{field}[{index}].{text}: must be a text"
    for field in ("securityContext", "lifecycle"):
        if container.get(field) is not None and not isinstance(container[field], dict):
            yield f"{path}.{field}: must be an object"


def _engine_problems(path: str, container: dict[str, Any]) -> Iterator[str]:
    for field in container:
        if field not in ENGINE_FIELDS:
            yield f"{path}.{field}: the engine container's {field} is the operator's"
    for index, variable in enumerate(container.get("env") or ()):
        if str(variable.get("name", "")).startswith(labels.RESERVED_ENV_PREFIX):
            yield (
                f"{path}.env[{index}].name: names that begin with {labels.RESERVED_ENV_PREFIX} "
                "are the operator's"
            )
    for index, mount in enumerate(container.get("volumeMounts") or ()):
        if mount.get("name") in labels.RESERVED_VOLUMES:
            yield f"{path}.volumeMounts[{index}].name: {mount['name']} is the operator's own"
