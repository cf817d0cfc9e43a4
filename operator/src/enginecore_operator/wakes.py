"""Which objects a change bears on."""

from collections.abc import Iterator

from enginecore_operator.api import labels
from enginecore_operator.kube.cache import Cache, Change
from enginecore_operator.plan.observed import NodeAddress, ObservedNode, ObservedPod
from enginecore_operator.workqueue import Key


def keys_concerned(change: Change, cache: Cache) -> Iterator[Key]:
    """Return the keys to reconcile after a change."""
    meta = change.metadata
    if change.kind in (labels.CLUSTER_KIND, labels.CORE_KIND):
        yield Key(change.kind, meta.namespace, meta.name)
    if change.kind == "Pod":
        yield from _parent(labels.CORE_KIND, meta.namespace, meta.labels.get(labels.CORE))
        if change.after is None and labels.SERVER_KEY in meta.annotations:
            # Keys may go with the last pod that has them.
            yield from _parent(labels.CLUSTER_KIND, meta.namespace, meta.labels.get(labels.CLUSTER))
    elif change.kind == "Node":
        yield from _engines_on(change, cache)
    elif change.kind in ("Service", "NetworkPolicy", "ConfigMap") and labels.CORE in meta.labels:
        yield Key(labels.CORE_KIND, meta.namespace, meta.labels[labels.CORE])
    elif change.kind != labels.CLUSTER_KIND:
        yield from _parent(labels.CLUSTER_KIND, meta.namespace, meta.labels.get(labels.CLUSTER))


def _parent(kind: str, namespace: str, name: str | None) -> Iterator[Key]:
    if name:
        yield Key(kind, namespace, name)


def _engines_on(change: Change, cache: Cache) -> Iterator[Key]:
    """Return the engines of a node that came, went, moved, or was marked as simulated."""
    if _traits(change.before) == _traits(change.after):
        return
    for pod in cache.all("Pod"):
        if isinstance(pod, ObservedPod) and pod.spec.node_name == change.metadata.name:
            meta = pod.metadata
            yield from _parent(labels.CORE_KIND, meta.namespace, meta.labels.get(labels.CORE))


def _traits(view: object) -> tuple[bool, list[NodeAddress]] | None:
    """Return what engines on a node depend on; None for a node that is not there."""
    return (view.simulated, view.status.addresses) if isinstance(view, ObservedNode) else None
