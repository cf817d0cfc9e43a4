"""CURVE that comes and goes: no key is forgotten, no engine left behind or taken for idle."""

from typing import Any

import msgspec
import pytest

from enginecore_operator.api import labels
from support.cluster_story import settled
from support.key_chest import LAG, SECURED, numbered
from support.key_stories import (
    FIRST,
    REPLICAS,
    allowed,
    client_key,
    publics,
    rotating,
    secured,
    step,
)
from support.operator_objects import CoreStory, running, started

GIVEN = {"secretName": "mine", "publicKey": "k" * 40, "allowedConfigMap": "those"}
PLAIN = {"transport": {"security": "None"}}


@pytest.mark.parametrize("since", ["Settled", "Listing", "Publishing"])
def test_a_while_without_curve_forgets_no_key(since: str) -> None:
    """Engines that wait for their turn, and clients, have the keys from before."""
    story, clock = (secured(), 0.0) if since == "Settled" else rotating(since)
    keys, there, client = story.status.keys, allowed(story), client_key(story)
    paused = {"replicas": REPLICAS, "rollout": {"paused": True}, "keys": {"generation": 2}}
    story.change_spec(**paused, transport={"security": "None"})
    story.plan(clock)
    assert story.status.keys == keys
    story.change_spec(**paused, **SECURED)
    story.plan(clock + 1)
    assert story.status.keys is not None
    assert (story.status.keys.generation, story.status.keys.next) == (1, 2)
    assert {*there["infer"]} <= {*allowed(story)["infer"]}
    assert numbered(1).public in allowed(story)["server"]
    if since == "Settled":
        assert (step(story), client_key(story)) == ("Listing", client)
    first = publics(FIRST)
    for rest in range(2, 6):
        story.plan(clock + rest * LAG)
    assert step(story) == "Replacing", "the rollout is paused"
    assert first["infer"] in allowed(story)["infer"]


def test_a_while_without_curve_forgets_no_key_of_an_engine_of_its_own() -> None:
    story = started(**SECURED)
    keys = story.status.keys
    story.change_spec(**PLAIN)
    story.plan(2)
    assert story.status.keys == keys
    story.change_spec(**SECURED, keys={"generation": 2})
    story.plan(3)
    assert story.status.keys is not None
    assert (story.status.keys.step, story.status.keys.generation) == ("Listing", 1)


@pytest.mark.parametrize("keys", [{}, {"clusterKeys": GIVEN}], ids=["its own", "given"])
@pytest.mark.parametrize(("before", "after"), [(PLAIN, SECURED), (SECURED, PLAIN)])
def test_curve_on_and_off_replaces_an_engine_of_its_own(
    keys: dict[str, Any], before: dict[str, Any], after: dict[str, Any]
) -> None:
    story = CoreStory(**before, **keys)
    story.plan()
    story.pod = running(story.pod)
    story.plan(1)
    story.change_spec(**after, **keys)
    story.plan(2)
    assert [labels.SERVER_KEY in pod.metadata.annotations for pod in story.pods] == [
        before == SECURED,
        after == SECURED,
    ]


@pytest.mark.parametrize("security", ["Curve", "None"])
def test_clients_are_told_of_no_coordinator_to_which_an_engine_cannot_report(
    security: str,
) -> None:
    """It would take that engine for idle."""
    before = {"transport": {"security": "None" if security == "Curve" else "Curve"}}
    story = settled(REPLICAS, **before)
    story.coordinator_at("10.1.0.1")
    story.plan()

    def documents() -> list[dict[str, Any]]:
        data = story.objects["ConfigMap"]["smollm-client-addresses"].raw["data"]
        return [msgspec.json.decode(text) for _, text in sorted(data.items())]

    told_before = [found["stats_update_address"] for found in documents()]
    assert told_before[0] == "tcp://10.1.0.1:5560"
    assert all(told_before)
    story.change_spec(replicas=REPLICAS, transport={"security": security})
    for rank in (1, 0):
        story.plan()
        assert story.status.client_addresses.stats_update_address == ""
        for found in documents():
            assert (found["stats_update_address"], "stats_server_key" in found) == ("", False)
        story.ready(rank)
    story.plan()
    assert [found["stats_update_address"] for found in documents()] == told_before
    for found in documents():
        assert ("stats_server_key" in found) == (security == "Curve")
