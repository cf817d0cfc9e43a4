"""Clusters with keys told pass by pass, up to a step at which another generation comes in."""

from typing import Any

from enginecore_operator.api import labels
from enginecore_operator.plan.actions import Apply, Plan
from support.cluster_story import ClusterStory, settled
from support.key_chest import LAG, SECURED, numbered
from support.operator_objects import actions_of

REPLICAS = 2
FIRST = {"server": 1, "coordinator": 2, "infer": 3, "admin": 4}
SECOND = {"server": 5, "coordinator": 6, "infer": 7, "admin": 8}


def publics(pairs: dict[str, int]) -> dict[str, str]:
    """Return the public keys of a generation by party."""
    return {party: numbered(number).public for party, number in pairs.items()}


def secured(replicas: int = REPLICAS, **spec: Any) -> ClusterStory:
    """Return the story of a cluster with CURVE whose engines are all Ready."""
    return settled(replicas, **{**SECURED, **spec})


def allowed(story: ClusterStory) -> dict[str, list[str]]:
    """Return the public keys of each file."""
    data = story.objects["ConfigMap"]["smollm-allowed-keys"].raw["data"]
    return {name: [line.split()[0] for line in text.splitlines()] for name, text in data.items()}


def step(story: ClusterStory) -> str:
    """Return how far the generation that comes in is."""
    assert story.status.keys is not None
    return story.status.keys.step


def client_key(story: ClusterStory) -> str:
    """Return the public key that applications have."""
    return story.chest.public("smollm-client")["public-key"] and (
        story.chest.secrets["smollm-client"].pairs["secret-key"].public
    )


def applied_cores(plan: Plan) -> list[str]:
    """Return the names of the engines that a plan changes."""
    applied = [a.manifest for a in actions_of(plan) if isinstance(a, Apply)]
    return [m["metadata"]["name"] for m in applied if m["kind"] == labels.CORE_KIND]


def rotating(until: str) -> tuple[ClusterStory, float]:
    """Return a story in a step of a rotation to generation 2, and the time at which it ends."""
    story, end = secured(), LAG
    story.change_spec(replicas=REPLICAS, keys={"generation": 2}, **SECURED)
    story.plan(0)
    if until in ("Publishing", "Replacing", "Retiring"):
        story.plan(LAG)
        end = 2 * LAG
    if until in ("Replacing", "Retiring"):
        story.plan(end)
    if until == "Retiring":
        for rank in (1, 0):
            story.ready(rank)
            story.plan(end)
        end += LAG
    assert step(story) == until
    return story, end
