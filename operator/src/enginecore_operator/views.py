"""Put together from the cache all that bears on one object."""

from enginecore_operator.api import labels
from enginecore_operator.kube.cache import Cache
from enginecore_operator.plan import names
from enginecore_operator.plan.exposure import NOT_EXPOSED
from enginecore_operator.plan.network_policy import UNLIMITED
from enginecore_operator.plan.observed import (
    ClusterView,
    CoreView,
    FactsReading,
    ObservedCluster,
    ObservedCore,
    ObservedObject,
    ObservedPod,
)


def read_core_view(
    cache: Cache, namespace: str, name: str, reading: FactsReading | None = None
) -> CoreView | None:
    """Return what is known of an EngineCore, but for its nodes; None where there is none."""
    core = cache.get(labels.CORE_KIND, namespace, name)
    if not isinstance(core, ObservedCore):
        return None
    pods = [p for p in cache.children("Pod", namespace, name) if isinstance(p, ObservedPod)]
    exposure = cache.get("Service", namespace, names.exposure_name(name))
    policy = cache.get("NetworkPolicy", namespace, names.core_policy_name(name))
    return CoreView(
        core=core,
        pods=pods,
        exposure=exposure if isinstance(exposure, ObservedObject) else None,
        policy=policy if isinstance(policy, ObservedObject) else None,
        reading=reading,
    )


def foreign_objects(view: CoreView) -> list[tuple[str, str]]:
    """Return kind and name of what is not this engine's, on names of its own.

    Watches do not follow what lacks our labels. A Service matters while the engine is exposed, a
    NetworkPolicy while one is to limit who may connect.
    """
    transport = view.core.spec.get("transport", {})
    found = []
    if transport.get("expose", NOT_EXPOSED) != NOT_EXPOSED:
        found.append(("Service", view.exposure))
    if transport.get("networkPolicy") != UNLIMITED:
        found.append(("NetworkPolicy", view.policy))
    uid = view.core.metadata.uid
    return [
        (kind, there.metadata.name)
        for kind, there in found
        if there is not None and not there.metadata.is_controlled_by(uid)
    ]


def read_cluster_view(cache: Cache, namespace: str, name: str) -> ClusterView | None:
    """Return what is known of an EngineCluster; None where there is none."""
    cluster = cache.get(labels.CLUSTER_KIND, namespace, name)
    if not isinstance(cluster, ObservedCluster):
        return None
    cores = {
        core.metadata.name: core
        for core in cache.children(labels.CORE_KIND, namespace, name)
        if isinstance(core, ObservedCore)
    }
    # Cores of others that sit on a name of ours carry no label of ours.
    for rank in range(int(cluster.spec.get("replicas", 0) or 0)):
        taken = names.core_name(name, rank)
        if taken not in cores:
            core = cache.get(labels.CORE_KIND, namespace, taken)
            if isinstance(core, ObservedCore):
                cores[taken] = core
    coordinator = names.coordinator_name(name)
    return ClusterView(
        cluster=cluster,
        cores=list(cores.values()),
        pod_keys=_pod_keys(cache, namespace, name),
        services=_objects(
            cache, "Service", namespace, names.engines_service_name(name), coordinator
        ),
        policies=_objects(
            cache, "NetworkPolicy", namespace, names.engines_policy_name(name), coordinator
        ),
        deployments=_objects(cache, "Deployment", namespace, coordinator),
        config_maps=_objects(cache, "ConfigMap", namespace, names.addresses_name(name)),
    )


def _pod_keys(cache: Cache, namespace: str, name: str) -> frozenset[str]:
    """Return the keys of a cluster's pods: by their own label, as an engine may go before its
    pod.
    """
    return frozenset(
        key
        for pod in cache.all("Pod")
        if isinstance(pod, ObservedPod)
        and pod.metadata.namespace == namespace
        and pod.metadata.labels.get(labels.CLUSTER) == name
        and pod.metadata.controller_name(labels.CORE_KIND)
        and (key := pod.metadata.annotations.get(labels.SERVER_KEY, ""))
    )


def foreign_children(view: ClusterView) -> list[tuple[str, str]]:
    """Return kind and name of objects on our names that are not ours.

    Watches do not follow them, as they lack our labels.
    """
    uid = view.cluster.metadata.uid
    groups = {
        "Service": view.services,
        "NetworkPolicy": view.policies,
        "Deployment": view.deployments,
        "ConfigMap": view.config_maps,
    }
    return [
        (kind, name)
        for kind, objects in groups.items()
        for name, observed in objects.items()
        if not observed.metadata.is_controlled_by(uid)
    ]


def _objects(cache: Cache, kind: str, namespace: str, *wanted: str) -> dict[str, ObservedObject]:
    found = {}
    for name in wanted:
        view = cache.get(kind, namespace, name)
        if isinstance(view, ObservedObject):
            found[name] = view
    return found
