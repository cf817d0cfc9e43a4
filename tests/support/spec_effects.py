"""Everything the operator makes of a spec, as one tree in which a field's effect can be found."""

from typing import Any

import msgspec

from enginecore_operator.api.conditions import Condition
from enginecore_operator.api.status import EngineCoreStatus
from enginecore_operator.plan.actions import Apply, Plan
from enginecore_operator.plan.observed import ClusterView, ObservedCore
from support.key_chest import KeyChest
from support.operator_objects import (
    CoreStory,
    cluster_spec,
    created,
    failed,
    observed_cluster,
    plan_for_cluster,
    running,
)

Tree = dict[str, Any]
ROLLOUT_REPLICAS = 3


def engine_effects(**spec: Any) -> Tree:
    """Return what one EngineCore leads to.

    Its Service for clients `outside`, who is `allowed`, its `policy`, `pod`, its container
    `engine`, the settings `server` in it, the `status` of a running engine, and of one that failed
    once and twice: how long it `waits`, and its `phases`.
    """
    story = CoreStory(**spec)
    story.policy = None
    made = {manifest["kind"]: manifest for manifest in created(story.plan())}
    pod = made["Pod"]
    engine = find(pod, "spec containers engine")
    story.pod = running(story.pod)
    story.plan(1)
    status = msgspec.to_builtins(story.status)
    waits, phases, clock = [], [], 2.0
    for _ in range(2):
        story.pod = failed(story.pod)
        plan = story.plan(clock)
        waits.append(plan.requeue_after)
        phases.append(story.status.phase)
        clock += plan.requeue_after or 0.0
        story.plan(clock)
    text = find(engine, "env ENGINECORE_CONFIG value").replace("$$", "$")
    return {
        "outside": made.get("Service"),
        "policy": made.get("NetworkPolicy"),
        "allowed": made.get("ConfigMap"),
        "pod": pod,
        "engine": engine,
        "server": msgspec.json.decode(text),
        "status": status,
        "waits": waits,
        "phases": phases,
    }


def cluster_effects(**spec: Any) -> Tree:
    """Return what an EngineCluster leads to.

    `ranks` of its EngineCores and the spec of one `core`, the `service` of the engines, the
    `coordinator`'s container, who is `allowed`, the addresses by `name`, and the `updated` ranks
    of a first step to another image.
    """
    plan = plan_for_cluster(ClusterView(cluster=observed_cluster(cluster_spec(**spec))))
    made = {(m["kind"], m["metadata"]["name"]): m for m in created(plan)}
    cores = [manifest for (kind, _), manifest in made.items() if kind == "EngineCore"]
    deployment = made["Deployment", "smollm-coordinator"]
    data = made["ConfigMap", "smollm-client-addresses"]["data"]
    return {
        "ranks": [core["spec"]["rank"] for core in cores],
        "core": cores[0]["spec"],
        "service": made["Service", "smollm-engines"],
        "coordinator": find(deployment, "spec template spec containers coordinator"),
        "allowed": made.get(("ConfigMap", "smollm-allowed-keys")),
        "name": msgspec.json.decode(data["client_addresses_dns.json"]),
        "updated": _first_step(spec),
    }


def find(tree: Any, path: str) -> Any:
    """Return what is at a path of words: keys of maps, indices or names of a list's items.

    None where the tree ends before the path does.
    """
    for word in path.split():
        if isinstance(tree, list):
            tree = dict(enumerate(tree)) | {i["name"]: i for i in tree if _is_named(i)}
            tree = tree.get(int(word) if word.isdecimal() else word)
        else:
            tree = (tree or {}).get(word)
    return tree


def leaf_paths(schema: Tree, path: str = "") -> set[str]:
    """Return the paths of all fields of an OpenAPI schema below which it names no more."""
    if "properties" in schema.get("items", {}):
        return leaf_paths(schema["items"], f"{path}[]")
    inner = schema.get("properties")
    if not inner:
        return {path}
    prefix = f"{path}." if path else ""
    return {leaf for name, child in inner.items() for leaf in leaf_paths(child, prefix + name)}


def _is_named(item: Any) -> bool:
    return isinstance(item, dict) and "name" in item


def _first_step(spec: Tree) -> list[int]:
    settled = {"replicas": ROLLOUT_REPLICAS, **spec}
    image = {**settled.get("runtime", {}), "image": "another:2"}
    chest = KeyChest()
    view = ClusterView(cluster=observed_cluster(cluster_spec(**settled)))
    cores = [_ready(manifest) for manifest in _cores(plan_for_cluster(view, chest=chest))]
    changed = observed_cluster(cluster_spec(**settled) | {"runtime": image})
    plan = plan_for_cluster(ClusterView(cluster=changed, cores=cores), chest=chest)
    applied = [a.manifest for stage in plan.stages for a in stage if isinstance(a, Apply)]
    return [m["spec"]["rank"] for m in applied if m["kind"] == "EngineCore"]


def _cores(plan: Plan) -> list[Tree]:
    return [manifest for manifest in created(plan) if manifest["kind"] == "EngineCore"]


def _ready(manifest: Tree) -> ObservedCore:
    meta = {**manifest["metadata"], "uid": manifest["metadata"]["name"], "generation": 1}
    core = msgspec.convert({**manifest, "metadata": meta}, ObservedCore)
    status = EngineCoreStatus(
        observed_generation=1, conditions=[Condition("Ready", "True", "PodReady")]
    )
    return msgspec.structs.replace(core, status=status)
