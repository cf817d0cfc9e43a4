"""The keys of an EngineCluster's engines and coordinator, as far as they are to be had."""

import msgspec

from enginecore_operator.api.transport import ClusterKeys
from enginecore_operator.plan import names
from enginecore_operator.plan.coordinator import deployed_key
from enginecore_operator.plan.key_rotation import engine_generation
from enginecore_operator.plan.keys import Keyring, build_keyring, cluster_holder
from enginecore_operator.plan.observed import ClusterView


def find_keyring(view: ClusterView) -> Keyring | None:
    """Return what its pods get; None where a cluster needs no keys."""
    holder = cluster_holder(view)
    return None if holder is None else build_keyring(holder, view.keys)


def coordinator_key(view: ClusterView, ring: Keyring | None) -> str:
    """Return the coordinator's key; while its Secret is not to be had, of the one that runs."""
    if ring is None:
        return ""
    if ring.coordinator_key:
        return ring.coordinator_key
    meta = view.cluster.metadata
    return deployed_key(meta, view.deployments.get(names.coordinator_name(meta.name)))


def keys_before(view: ClusterView) -> ClusterKeys | None:
    """Return what engines were to have when their keys were to be had last."""
    meta, state = view.cluster.metadata, view.cluster.status.keys
    if state is None:
        return None
    name = names.keys_secret_name(meta.name, engine_generation(state))
    given = [
        (int(core.spec.get("rank", 0)), core.spec["clusterKeys"])
        for core in view.cores
        if core.metadata.is_controlled_by(meta.uid)
        and (core.spec.get("clusterKeys") or {}).get("secretName") == name
    ]
    # A rollout begins with the highest rank.
    newest = max(given, key=lambda pair: pair[0], default=None)
    return msgspec.convert(newest[1], ClusterKeys) if newest is not None else None
