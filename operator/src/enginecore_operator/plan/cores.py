"""Build the EngineCores of an EngineCluster."""

from typing import Any

import msgspec

from enginecore_operator.api import labels
from enginecore_operator.api.schema import fields_of
from enginecore_operator.api.transport import ClusterKeys, Keys
from enginecore_operator.api.v1alpha1 import EngineClusterSpec, EngineCoreSpec, EngineTemplate
from enginecore_operator.api.validate import read_spec
from enginecore_operator.plan import names
from enginecore_operator.plan.observed import ObjectMeta, ObservedCore
from enginecore_operator.plan.rendering import owner_reference


def core_spec(
    owner: ObjectMeta, spec: EngineClusterSpec, rank: int, keys: ClusterKeys | None = None
) -> EngineCoreSpec:
    """Return the spec of the engine of one rank; `keys` are those the cluster made for it."""
    shared = {field.name: getattr(spec, field.name) for field in fields_of(EngineTemplate)}
    return EngineCoreSpec(
        **{**shared, "keys": Keys()},
        rank=rank,
        coordinator_address=names.coordinator_address(owner.name, owner.namespace),
        cluster_keys=keys,
    )


def read_core_spec(core: ObservedCore) -> EngineCoreSpec:
    """Return the spec of an engine. Raises InvalidSpecError.

    One to which its cluster gave no keys speaks without CURVE: it is from before there were any,
    and the default that its spec is read with by now is not what its cluster wrote.
    """
    raw = core.spec
    transport = raw.get("transport", {})
    of_a_cluster = core.metadata.controller_name(labels.CLUSTER_KIND) != ""
    if of_a_cluster and not raw.get("clusterKeys") and isinstance(transport, dict):
        raw = {**raw, "transport": {**transport, "security": "None"}}
    return read_spec(raw, EngineCoreSpec)


def spec_document(spec: msgspec.Struct) -> dict[str, Any]:
    """Write a spec as the API takes it: fields that are not set, or empty, are absent.

    Where an apply writes an empty map over one that it filled, the API server makes it null.
    """
    document = {}
    for field in fields_of(type(spec)):
        value = getattr(spec, field.name)
        if isinstance(value, msgspec.Struct):
            value = spec_document(value)
        if value not in (None, {}, [], ()):
            document[field.encode_name] = _without_nulls(msgspec.to_builtins(value))
    return document


def build_core(
    owner: ObjectMeta, document: dict[str, Any], rank: int, revision: str
) -> dict[str, Any]:
    """Build the EngineCore of one rank; `document` is a spec_document of any rank."""
    return {
        "apiVersion": labels.API_VERSION,
        "kind": labels.CORE_KIND,
        "metadata": {
            "name": names.core_name(owner.name, rank),
            "namespace": owner.namespace,
            "labels": {
                **names.common_labels(owner.name),
                labels.CLUSTER: owner.name,
                labels.RANK: str(rank),
                labels.REVISION: revision,
            },
            "ownerReferences": [owner_reference(labels.CLUSTER_KIND, owner)],
        },
        "spec": {**document, "rank": rank},
    }


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value
