"""Which keys a cluster's pods have, and when that is looked at again."""

from typing import Any

import pytest

from enginecore_operator.api import labels
from enginecore_operator.kube.cache import Cache, Change
from enginecore_operator.views import read_cluster_view
from enginecore_operator.wakes import keys_concerned
from support.operator_objects import NAMESPACE, cluster_spec, owned_by

KEY, OTHER = "k" * 40, "o" * 40


def pod(name: str, key: str = KEY, **changes: Any) -> dict[str, Any]:
    """Return a pod of the cluster; `changes` are of its metadata."""
    return {
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": f"uid-{name}",
            "resourceVersion": "1",
            "labels": {labels.CLUSTER: "smollm", labels.CORE: "smollm-0"},
            "annotations": {labels.SERVER_KEY: key} if key else {},
            "ownerReferences": owned_by("EngineCore", "smollm-0", "u"),
            **changes,
        }
    }


@pytest.mark.parametrize(
    ("pods", "keys"),
    [
        ([], set()),
        ([pod("a"), pod("b")], {KEY}),
        ([pod("a"), pod("b", OTHER, deletionTimestamp="2026-01-01T00:00:00Z")], {KEY, OTHER}),
        ([pod("a"), pod("b", "")], {KEY}),
        ([pod("a"), pod("b", OTHER, namespace="elsewhere")], {KEY}),
        ([pod("a"), pod("b", OTHER, labels={labels.CLUSTER: "others"})], {KEY}),
        ([pod("a"), pod("b", OTHER, labels={labels.CORE: "smollm-0"})], {KEY}),
        ([pod("a"), pod("b", OTHER, ownerReferences=[])], {KEY}),
        ([pod("a"), pod("b", OTHER, ownerReferences=owned_by("ReplicaSet", "r", "u"))], {KEY}),
    ],
    ids=["none", "one", "drains", "without", "namespace", "cluster", "alone", "nobody's", "other"],
)
def test_keys_are_those_of_pods_of_the_cluster_s_engines(
    pods: list[dict[str, Any]], keys: set[str]
) -> None:
    """An engine that is gone counts as long as its pod is there."""
    cache = Cache(lambda _: None)
    meta = {"name": "smollm", "namespace": NAMESPACE, "uid": "u", "resourceVersion": "1"}
    cache.put(labels.CLUSTER_KIND, {"metadata": meta, "spec": cluster_spec()})
    for raw in pods:
        cache.put("Pod", raw)
    view = read_cluster_view(cache, NAMESPACE, "smollm")
    assert view is not None
    assert view.pod_keys == keys


@pytest.mark.parametrize(("key", "wakes"), [(KEY, True), ("", False)])
def test_the_end_of_a_pod_with_a_key_wakes_its_cluster(key: str, wakes: bool) -> None:
    changes: list[Change] = []
    cache = Cache(changes.append)
    cache.put("Pod", pod("a", key))
    cache.put("Pod", pod("a", key, resourceVersion="2", deletionTimestamp="2026-01-01T00:00:00Z"))
    cache.remove("Pod", NAMESPACE, "a")
    woken = [[(key.kind, key.name) for key in keys_concerned(c, cache)] for c in changes]
    core, cluster = ("EngineCore", "smollm-0"), ("EngineCluster", "smollm")
    assert woken == [[core], [core], [core, cluster] if wakes else [core]]
