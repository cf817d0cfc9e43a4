"""Pieces of OpenAPI schema that the annotations of the API structs refer to."""

import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec

QUANTITY_PATTERN: Final = r"^([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][-+]?[0-9]+)?$"
IMMUTABLE: Final = {
    "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "cannot be changed"}]
}
KEYED_BY_NAME: Final = {
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["name"],
}
NAME_SCHEMA: Final = {
    "type": "string",
    "minLength": 1,
    "maxLength": 63,
    "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
    "description": "Unique name.",
}
ENGINE_FIELDS: Final = (
    "name",
    "env",
    "volumeMounts",
    "imagePullPolicy",
    "securityContext",
    "lifecycle",
)
"""What a container named like the engine's may set."""
_OBJECT: Final = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
CONTAINER_FIELDS: Final = {
    "env": {"type": "array", "items": _OBJECT},
    "volumeMounts": {
        "type": "array",
        "items": {
            **_OBJECT,
            "properties": {"name": {"type": "string"}, "mountPath": {"type": "string"}},
        },
    },
    "securityContext": _OBJECT,
    "lifecycle": _OBJECT,
}
"""What the operator reads of a container, or merges; the rest it hands on."""
REFUSED_ENGINE_FIELDS: Final = {
    "image": {"type": "string"},
    "command": {"type": "array", "maxItems": 64, "items": {"type": "string"}},
    "args": {"type": "array", "maxItems": 64, "items": {"type": "string"}},
    "ports": {"type": "array", "maxItems": 64, "items": _OBJECT},
    "resources": _OBJECT,
}


class Spec(msgspec.Struct, frozen=True, rename="camel"):
    """Base of all spec structs: immutable, camelCase, unknown fields ignored (newer CRDs)."""


@functools.cache
def fields_of(kind: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """Return the fields of a struct; msgspec evaluates all annotations on each question."""
    return msgspec.structs.fields(kind)


class Rule(NamedTuple):
    """A rule over one object, written twice: as CEL for admission, as Python for the rest.

    `field` is the path, below the object, of the field to blame; `holds` takes the struct.
    """

    rule: str
    message: str
    field: str
    holds: Callable[[Any], bool]

    def to_schema(self) -> dict[str, str]:
        """Write the rule as an item of x-kubernetes-validations."""
        entry = {"rule": self.rule, "message": self.message}
        if self.field:
            entry["fieldPath"] = self.field
        return entry


def no_reserved_keys(prefix: str) -> dict[str, Any]:
    """Refuse keys of a map that begin with `prefix`."""
    return {
        "x-kubernetes-validations": [
            {
                "rule": f"self.all(key, !key.startsWith('{prefix}'))",
                "message": f"keys that begin with {prefix} are the operator's",
            }
        ]
    }


def named_objects(
    *, reserved: Sequence[str], fields: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Any]:
    """Describe a list of objects with unique names, some of them reserved; they are free but for
    `fields`.
    """
    words = ", ".join(f"'{name}'" for name in reserved)
    return {
        **KEYED_BY_NAME,
        "items": {
            "type": "object",
            "required": ["name"],
            "properties": {"name": NAME_SCHEMA, **fields},
            "x-kubernetes-preserve-unknown-fields": True,
            "x-kubernetes-validations": [
                {
                    "rule": f"!(self.name in [{words}])",
                    "message": f"the operator's own names are reserved: {', '.join(reserved)}",
                    "fieldPath": ".name",
                }
            ],
        },
    }


def containers(engine: str) -> dict[str, Any]:
    """Describe the list of containers, in which `engine` is merged and not added."""
    return {
        **KEYED_BY_NAME,
        "items": {
            "type": "object",
            "required": ["name"],
            "properties": {"name": NAME_SCHEMA, **REFUSED_ENGINE_FIELDS, **CONTAINER_FIELDS},
            "x-kubernetes-preserve-unknown-fields": True,
            "x-kubernetes-validations": [
                {
                    "rule": f"self.name != '{engine}' || !has(self.{field})",
                    "message": f"the {engine} container's {field} is the operator's",
                    "fieldPath": f".{field}",
                }
                for field in REFUSED_ENGINE_FIELDS
            ],
        },
    }
