"""Generate the CRDs from the API structs.

`python -m enginecore_operator.api.crdgen --write manifests/crds` writes one file per kind,
`--check` exits 1 when a file there differs.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml
from msgspec import inspect

from enginecore_operator.api import labels
from enginecore_operator.api.status import EngineClusterStatus, EngineCoreStatus
from enginecore_operator.api.v1alpha1 import EngineClusterSpec, EngineCoreSpec

SIZE_LIMIT: Final = 256 * 1024
"""Client-side `kubectl apply` keeps the object in an annotation of at most this many bytes."""

NAME_RULES: Final = {
    labels.CLUSTER_KIND: (40, "pods, Services and Deployments are named after it"),
    labels.CORE_KIND: (50, "pods are named after it"),
}


class UnsupportedTypeError(TypeError):
    """A field has a type that has no counterpart in a CRD."""


def _column(name: str, kind: str, path: str, *, wide: bool = False) -> dict[str, Any]:
    column: dict[str, Any] = {"name": name, "type": kind, "jsonPath": path}
    if wide:
        column["priority"] = 1
    return column


def _condition_column(name: str, *, wide: bool = False) -> dict[str, Any]:
    return _column(name, "string", f'.status.conditions[?(@.type=="{name}")].status', wide=wide)


CLUSTER_COLUMNS: Final = [
    _column("Model", "string", ".spec.model.name"),
    _column("Runtime", "string", ".spec.runtime.type"),
    _column("Desired", "integer", ".spec.replicas"),
    _column("Ready", "integer", ".status.readyReplicas"),
    _condition_column("Available"),
    _condition_column("Degraded", wide=True),
    _column("Updated", "integer", ".status.updatedReplicas", wide=True),
    _column("Age", "date", ".metadata.creationTimestamp"),
]
CORE_COLUMNS: Final = [
    _column("Rank", "integer", ".spec.rank"),
    _column("Phase", "string", ".status.phase"),
    _condition_column("Ready"),
    _column("Epoch", "integer", ".status.epoch"),
    _column("Restarts", "integer", ".status.restarts"),
    _column("Input", "string", ".status.inputAddress", wide=True),
    _column("Output", "string", ".status.outputAddress", wide=True),
    _column("Node", "string", ".status.pod.node", wide=True),
    _column("Age", "date", ".metadata.creationTimestamp"),
]
SCALE: Final = {
    "specReplicasPath": ".spec.replicas",
    "statusReplicasPath": ".status.replicas",
    "labelSelectorPath": ".status.selector",
}


def _bounds(kind: inspect.IntType | inspect.FloatType) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    if kind.ge is not None:
        schema["minimum"] = kind.ge
    if kind.gt is not None:
        schema |= {"minimum": kind.gt, "exclusiveMinimum": True}
    if kind.le is not None:
        schema["maximum"] = kind.le
    return schema


def _string_schema(kind: inspect.StrType) -> dict[str, Any]:
    found = {"minLength": kind.min_length, "maxLength": kind.max_length, "pattern": kind.pattern}
    return {"type": "string", **{key: value for key, value in found.items() if value is not None}}


def _list_schema(kind: inspect.ListType, *, defaults: bool) -> dict[str, Any]:
    items = type_schema(kind.item_type, defaults=defaults)
    schema: dict[str, Any] = {"type": "array", "items": items}
    if kind.max_length is not None:
        schema["maxItems"] = kind.max_length
    return schema


def _map_schema(kind: inspect.DictType) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    if isinstance(kind.value_type, inspect.AnyType):
        schema["x-kubernetes-preserve-unknown-fields"] = True
    else:
        schema["additionalProperties"] = type_schema(kind.value_type)
    if kind.max_length is not None:
        schema["maxProperties"] = kind.max_length
    return schema


def _union_schema(kind: inspect.UnionType, *, defaults: bool) -> dict[str, Any]:
    members = [t for t in kind.types if not isinstance(t, inspect.NoneType)]
    if len(members) == 1:
        return type_schema(members[0], defaults=defaults)
    words = [t for t in members if isinstance(t, inspect.StrType)]
    if len(members) == 2 and len(words) == 1 and isinstance(members[0], inspect.IntType):
        schema = _string_schema(words[0])
        del schema["type"]
        return {"x-kubernetes-int-or-string": True, **schema}
    raise UnsupportedTypeError(f"no CRD schema for the union {kind}")


def _default_of(field: inspect.Field) -> Any:
    """Return the default as plain data, or NODEFAULT where the API server should set none."""
    if field.required:
        return msgspec.NODEFAULT
    value = field.default
    if value is msgspec.NODEFAULT:
        value = field.default_factory()
    if isinstance(value, msgspec.Struct):
        # Written out, as rules are checked on defaults before nested defaults are set.
        return _without_empty(msgspec.to_builtins(value))
    return msgspec.NODEFAULT if _is_empty(value) else msgspec.to_builtins(value)


def _is_empty(value: Any) -> bool:
    return value is None or value in ([], {}, "")


def _without_empty(document: dict[str, Any]) -> dict[str, Any]:
    """Leave out what has no default of its own; nested objects stay, as they have one."""
    return {
        key: _without_empty(value) if isinstance(value, dict) and value else value
        for key, value in document.items()
        if not _is_empty(value)
    }


def _struct_schema(kind: inspect.StructType, *, defaults: bool) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    required = []
    for field in kind.fields:
        schema = type_schema(field.type, defaults=defaults)
        default = _default_of(field)
        if default is not msgspec.NODEFAULT and defaults:
            schema["default"] = default
        if field.required:
            required.append(field.encode_name)
        properties[field.encode_name] = schema
    schema = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    rules = getattr(kind.cls, "rules", ())
    if rules:
        schema["x-kubernetes-validations"] = [rule.to_schema() for rule in rules]
    return schema


def _scalar_schema(kind: inspect.Type) -> dict[str, Any]:
    match kind:
        case inspect.StrType():
            return _string_schema(kind)
        case inspect.BoolType():
            return {"type": "boolean"}
        case inspect.IntType():
            return {"type": "integer", "format": "int64", **_bounds(kind)}
        case inspect.FloatType():
            return {"type": "number", **_bounds(kind)}
        case inspect.LiteralType():
            return {"type": "string", "enum": list(kind.values)}
        case _:
            raise UnsupportedTypeError(f"no CRD schema for {kind}")


def type_schema(kind: inspect.Type, *, defaults: bool = True) -> dict[str, Any]:
    """Translate one msgspec type. Raises UnsupportedTypeError."""
    match kind:
        case inspect.Metadata():
            schema = type_schema(kind.type, defaults=defaults)
            return schema | dict(kind.extra_json_schema or {})
        case inspect.StructType():
            return _struct_schema(kind, defaults=defaults)
        case inspect.UnionType():
            return _union_schema(kind, defaults=defaults)
        case inspect.ListType():
            return _list_schema(kind, defaults=defaults)
        case inspect.DictType():
            return _map_schema(kind)
        case _:
            return _scalar_schema(kind)


def _status_schema(kind: type[msgspec.Struct]) -> dict[str, Any]:
    schema = type_schema(inspect.type_info(kind), defaults=False)
    schema["description"] = "Written by the operator."
    conditions = schema["properties"]["conditions"]
    conditions |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
    conditions["items"]["required"] = ["type", "status"]
    return schema


def build_crd(
    kind: str,
    short: str,
    spec: type[msgspec.Struct],
    status: type[msgspec.Struct],
    columns: list[dict[str, Any]],
    *,
    scale: bool,
) -> dict[str, Any]:
    """Build one CustomResourceDefinition."""
    singular = kind.lower()
    longest, reason = NAME_RULES[kind]
    spec_schema = type_schema(inspect.type_info(spec))
    spec_schema["description"] = "What is wanted."
    subresources: dict[str, Any] = {"status": {}}
    if scale:
        subresources["scale"] = SCALE
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{singular}s.{labels.GROUP}"},
        "spec": {
            "group": labels.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": f"{singular}s",
                "singular": singular,
                "shortNames": [short],
                # Not a name of a kind: kubectl would take that kind for both.
                "categories": ["engines"],
            },
            "versions": [
                {
                    "name": labels.VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": subresources,
                    "additionalPrinterColumns": columns,
                    "schema": {
                        "openAPIV3Schema": {
                            "type": "object",
                            "description": (spec.__doc__ or "").strip(),
                            "required": ["spec"],
                            "properties": {
                                "apiVersion": {"type": "string"},
                                "kind": {"type": "string"},
                                "metadata": {"type": "object"},
                                "spec": spec_schema,
                                "status": _status_schema(status),
                            },
                            "x-kubernetes-validations": [
                                {
                                    "rule": f"self.metadata.name.size() <= {longest}",
                                    "message": f"metadata.name has at most {longest} characters: "
                                    f"{reason}",
                                },
                                {
                                    "rule": "self.metadata.name.matches("
                                    "'^[a-z]([-a-z0-9]*[a-z0-9])?$')",
                                    "message": "metadata.name is a DNS label that begins with a "
                                    "letter: hosts and Services are named after it",
                                },
                            ],
                        }
                    },
                }
            ],
        },
    }


def build_crds() -> dict[str, dict[str, Any]]:
    """Build every CRD, by file name."""
    cluster = build_crd(
        labels.CLUSTER_KIND,
        "ecl",
        EngineClusterSpec,
        EngineClusterStatus,
        CLUSTER_COLUMNS,
        scale=True,
    )
    core = build_crd(
        labels.CORE_KIND, "eco", EngineCoreSpec, EngineCoreStatus, CORE_COLUMNS, scale=False
    )
    return {f"{crd['metadata']['name']}.yaml": crd for crd in (cluster, core)}


class _Dumper(yaml.SafeDumper):
    """Writes no anchors: equal parts are written out."""

    def ignore_aliases(self, _data: Any) -> bool:
        """Never use an alias."""
        return True


def render(crd: dict[str, Any]) -> str:
    """Write one CRD as YAML. Raises ValueError when it is too large for kubectl apply."""
    text = yaml.dump(crd, Dumper=_Dumper, sort_keys=False, width=100, allow_unicode=True)
    if len(text.encode()) >= SIZE_LIMIT:
        raise ValueError(f"{crd['metadata']['name']} has {len(text)} bytes, limit {SIZE_LIMIT}")
    return f"# Generated from the API structs (crdgen); do not edit.\n{text}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check the files; returns the exit status."""
    parser = argparse.ArgumentParser(prog="crdgen", description=__doc__)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--write", metavar="DIR", type=Path)
    mode.add_argument("--check", metavar="DIR", type=Path)
    options = parser.parse_args(arguments)
    stale = []
    for name, crd in build_crds().items():
        text = render(crd)
        path = (options.write or options.check) / name
        if options.write:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(str(path))
    if stale:
        sys.stderr.write(f"not up to date: {', '.join(stale)}; run crdgen --write\n")
    return 1 if stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
