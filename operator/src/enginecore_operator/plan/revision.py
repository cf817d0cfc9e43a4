"""Revisions: a hash of what users wrote that decides how a pod is."""

import hashlib
from typing import Any

import msgspec

from enginecore_operator.api.schema import fields_of
from enginecore_operator.api.transport import Transport
from enginecore_operator.api.v1alpha1 import EngineCoreSpec, EngineTemplate
from enginecore_operator.plan.key_files import CURVE

REVISION_LENGTH = 10


def compute_revision(spec: EngineCoreSpec) -> str:
    """Hash the part of a spec that a change of replaces pods: all but rank, restart, keys (pods
    are made by clusterKeys), transport.expose and transport.networkPolicy.

    Fields at their default are left out, so a new field in a new operator changes no hash.
    """
    relevant: dict[str, Any] = {}
    # A Service and a NetworkPolicy are put before the pod, or taken away. CURVE is in the keys, and
    # counts by them: so pods from before there was any are as they are to be without it. Without
    # CURVE a pod has no use for keys that it was given.
    keys = spec.cluster_keys if spec.transport.security == CURVE else None
    inside = msgspec.structs.replace(
        spec.transport, expose="None", network_policy="Clients", security=Transport().security
    )
    spec = msgspec.structs.replace(spec, transport=inside, cluster_keys=keys)
    if spec.accelerator.count == spec.parallelism.devices:
        # As if it were left out: API servers once wrote the default into every object.
        unset = msgspec.structs.replace(spec.accelerator, count=None)
        spec = msgspec.structs.replace(spec, accelerator=unset)
    for field in fields_of(type(spec)):
        if field.name not in ("rank", "restart", "keys"):
            value = _without_defaults(getattr(spec, field.name), field)
            if value is not None:
                relevant[field.encode_name] = value
    canonical = msgspec.json.encode(relevant, order="sorted")
    return hashlib.sha256(canonical).hexdigest()[:REVISION_LENGTH]


def take_over_settings(spec: EngineCoreSpec, template: EngineTemplate) -> EngineCoreSpec:
    """Return an engine's spec with what no revision counts from `template`."""
    given = template.transport
    transport = msgspec.structs.replace(
        spec.transport, expose=given.expose, network_policy=given.network_policy
    )
    return msgspec.structs.replace(spec, transport=transport, restart=template.restart)


def _without_defaults(value: Any, field: msgspec.structs.FieldInfo) -> Any:
    """Reduce a value to what differs from the field's default; None if nothing does."""
    if isinstance(value, msgspec.Struct):
        found = {}
        for inner in fields_of(type(value)):
            reduced = _without_defaults(getattr(value, inner.name), inner)
            if reduced is not None:
                found[inner.encode_name] = reduced
        return found or None
    default = field.default
    if default is msgspec.NODEFAULT and field.default_factory is not msgspec.NODEFAULT:
        default = field.default_factory()
    return None if value == default else msgspec.to_builtins(value)
