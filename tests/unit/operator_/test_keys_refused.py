"""Secrets that the API server does not give, or take: all that needs none of them goes on."""

from typing import Any

import msgspec
import pytest

from support.key_chest import SECURED, numbered
from support.key_stories import REPLICAS, applied_cores, secured
from support.operator_objects import CoreStory, running, told

REFUSAL = 'secrets "smollm-keys-1" is forbidden'
MEANWHILE: dict[str, tuple[dict[str, Any], list[str]]] = {
    "nothing": ({}, []),
    "another generation": ({"keys": {"generation": 2}}, []),
    "another image": ({"runtime": {"image": "new:2"}}, []),
    "what replaces no pod": ({"restart": {"limit": 3}}, ["smollm-0", "smollm-1"]),
}


@pytest.mark.parametrize(("change", "applied"), MEANWHILE.values(), ids=MEANWHILE)
def test_a_cluster_goes_on_while_no_secret_is_to_be_had(
    change: dict[str, Any], applied: list[str]
) -> None:
    story = secured()
    story.coordinator_at("10.1.0.1")
    story.plan(1)
    before = story.status
    story.chest.refusal = REFUSAL
    core = story.cores["smollm-0"]
    moved = msgspec.structs.replace(core.status, input_address="tcp://10.9.9.9:5557")
    story.cores["smollm-0"] = msgspec.structs.replace(core, status=moved)
    story.change_spec(replicas=REPLICAS + 1, **SECURED, **change)
    plan = story.plan(2)
    assert sorted(applied_cores(plan)) == applied
    assert "smollm-2" not in story.cores, "it would find no key"
    assert "Created" not in told(plan)
    told_addresses = story.status.client_addresses
    assert told_addresses.input_address[0] == "tcp://10.9.9.9:5557"
    assert told_addresses.server_key == [numbered(1).public] * REPLICAS + [""]
    assert told_addresses.stats_server_key == before.client_addresses.stats_server_key
    assert told_addresses.stats_server_key is not None
    assert story.status.keys == before.keys
    same = change.get("runtime") is None
    assert (story.status.updated_replicas == REPLICAS) == same, "by the keys they had"
    story.chest.refusal = ""
    story.plan(3)
    assert "smollm-2" in story.cores


def test_a_cluster_scales_down_while_no_secret_is_to_be_had() -> None:
    story = secured()
    story.chest.refusal = REFUSAL
    story.change_spec(replicas=1, **SECURED)
    story.plan(1)
    assert sorted(story.cores) == ["smollm-0"]


def test_an_engine_of_its_own_goes_on_while_no_secret_is_to_be_had() -> None:
    story = CoreStory(**SECURED)
    story.plan()
    before = story.status.keys
    story.chest.refusal = REFUSAL
    story.pod = running(story.pod, ip="10.0.0.7")
    story.plan(1)
    assert story.condition("Ready") == ("True", "PodReady")
    assert story.status.input_address == "tcp://10.0.0.7:5557"
    assert story.status.server_key == numbered(1).public
    assert story.status.keys == before
    assert len(story.pods) == 1


def test_an_engine_without_a_pod_says_that_no_secret_is_to_be_had() -> None:
    story = CoreStory(**SECURED)
    story.chest.refusal = REFUSAL
    plan = story.plan()
    assert story.condition("Ready") == ("False", "RefusedByApi")
    assert (told(plan), told(story.plan(1))) == (["RefusedByApi"], [])
    story.chest.refusal = ""
    story.plan(2)
    assert len(story.pods) == 1
