"""Keys that are lost, taken away, or another's while another generation comes in."""

import msgspec
import pytest

from enginecore_operator.plan.observed import ObservedObject
from support.cluster_story import ClusterStory
from support.key_chest import LAG, SECURED, numbered
from support.key_stories import (
    FIRST,
    REPLICAS,
    SECOND,
    allowed,
    client_key,
    publics,
    rotating,
    secured,
    step,
)


def give_coordinator_address(story: ClusterStory) -> None:
    service = story.objects["Service"]["smollm-coordinator"]
    raw = {**service.raw, "spec": {**service.raw["spec"], "clusterIP": "10.1.0.1"}}
    story.objects["Service"]["smollm-coordinator"] = ObservedObject(service.metadata, raw)


@pytest.mark.parametrize("wanted", [1, 3])
def test_a_generation_that_no_client_has_is_dropped_for_another(wanted: int) -> None:
    story, end = rotating("Listing")
    story.change_spec(replicas=REPLICAS, keys={"generation": wanted}, **SECURED)
    story.plan(end)
    assert step(story) == "Settled"
    assert allowed(story) == {name: [key] for name, key in publics(FIRST).items()}
    assert story.chest.public("smollm-keys-2") == {}, "nobody had them, nobody gets them"
    story.plan(end + 1)
    assert step(story) == ("Settled" if wanted == 1 else "Listing")
    assert client_key(story) == publics(FIRST)["infer"]


@pytest.mark.parametrize("wanted", [1, 2, 3])
@pytest.mark.parametrize("begun", [False, True])
def test_a_generation_whose_name_is_another_s_is_in_no_one_s_way(begun: bool, wanted: int) -> None:
    """It does not begin; where it has, it can be dropped. It begins once the name is free."""
    key = "k" * 40
    story = rotating("Listing")[0] if begun else secured()
    story.chest.put_foreign("smollm-keys-2")
    story.change_spec(replicas=REPLICAS, keys={"generation": 2, "infer": [key]}, **SECURED)
    story.plan(1000)
    assert step(story) == ("Listing" if begun else "Settled")
    assert story.condition("Degraded") == ("True", "NameTaken")
    assert "Secret smollm-keys-2" in story.message("Degraded")
    first, listed = publics(FIRST)["infer"], allowed(story)["infer"]
    assert {first, key} <= {*listed}
    assert (client_key(story), story.status.ready_replicas) == (first, REPLICAS)

    story.change_spec(replicas=REPLICAS, keys={"generation": wanted}, **SECURED)
    if wanted == 2:
        del story.chest.secrets["smollm-keys-2"]
    for clock in (2000, 2001):
        story.plan(clock)
    assert key not in allowed(story)["infer"]
    assert step(story) == ("Settled" if wanted == 1 else "Listing")
    assert story.condition("Degraded")[0] == "False"
    if wanted != 2:
        assert story.chest.public("smollm-keys-2") == {"server": numbered(99).public}


def test_the_list_follows_the_spec_while_keys_are_another_s() -> None:
    story = secured()
    give_coordinator_address(story)
    story.plan()
    before, told_before = allowed(story), story.status.client_addresses
    key = "k" * 40
    story.chest.put_foreign("smollm-keys-1")
    story.change_spec(replicas=REPLICAS, keys={"infer": [key]}, **SECURED)
    story.plan()
    assert allowed(story) == {**before, "infer": [*before["infer"], key]}
    assert story.status.client_addresses == told_before
    assert told_before.stats_server_key == publics(FIRST)["coordinator"]
    story.change_spec(replicas=REPLICAS, **SECURED)
    story.plan()
    assert allowed(story) == before


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("until", ["Publishing", "Replacing", "Retiring"])
def test_all_who_are_let_in_stay_while_keys_are_another_s(until: str, number: int) -> None:
    story, end = rotating(until)
    before = {role: {*allowed(story)[role]} for role in ("infer", "admin")}
    story.chest.put_foreign(f"smollm-keys-{number}")
    story.plan(end - 1)
    assert {role: {*allowed(story)[role]} for role in before} == before
    assert story.condition("Degraded") == ("True", "NameTaken")


def test_what_is_no_key_gets_into_no_list() -> None:
    """The coordinator refuses a list with one bad line as a whole."""
    story = secured()
    core = story.cores["smollm-0"]
    status = msgspec.structs.replace(core.status, server_key="no key\nat all")
    story.cores["smollm-0"] = msgspec.structs.replace(core, status=status)
    story.plan()
    assert allowed(story)["server"] == [publics(FIRST)["server"]]


@pytest.mark.parametrize("deadline", [1, 3600], ids=["by the new spec", "by the old spec"])
def test_old_keys_stay_until_the_last_pod_that_has_them_has_drained(deadline: int) -> None:
    """It drains by the deadline that it was made with, whatever the spec says by then."""
    story, clock = rotating("Replacing")
    drain = {"deadlineSeconds": deadline}
    story.change_spec(replicas=REPLICAS, keys={"generation": 2}, drain=drain, **SECURED)
    first, second = publics(FIRST), publics(SECOND)
    story.pod_keys = frozenset({first["server"], second["server"], "no key"})
    for _ in range(4):
        story.plan(clock)
        story.ready(0, 1)
    assert {core.status.server_key for core in story.cores.values()} == {second["server"]}
    for _ in range(2):
        clock += 3000
        story.plan(clock)
        assert step(story) == "Replacing"
        assert {first["infer"], second["infer"]} == {*allowed(story)["infer"]}
        assert {first["server"], second["server"]} == {*allowed(story)["server"]}
    story.pod_keys = frozenset({second["server"]})
    story.plan(clock)
    assert step(story) == "Retiring"
    story.plan(clock + LAG)
    assert step(story) == "Settled"


@pytest.mark.parametrize(
    ("until", "lost", "then"),
    [
        ("Settled", 1, "Listing"),
        ("Listing", 1, "Publishing"),
        ("Publishing", 1, "Replacing"),
        ("Retiring", 2, "Settled"),
    ],
)
def test_clients_stay_when_a_secret_is_lost_as_a_step_ends(
    until: str, lost: int, then: str
) -> None:
    """No pass falls between the loss and the step."""
    story, end = (secured(), 0.0) if until == "Settled" else rotating(until)
    if until == "Settled":
        story.change_spec(replicas=REPLICAS, keys={"generation": 2}, **SECURED)
    key = publics(FIRST if lost == 1 else SECOND)["infer"]
    assert key in allowed(story)["infer"]
    del story.chest.secrets[f"smollm-keys-{lost}"]
    plan = story.plan(end)
    assert step(story) == then
    assert key in allowed(story)["infer"]
    assert next(e.type for e in plan.events if e.reason == "KeysMade") == "Warning"
    story.plan(end + 1)
    assert key in allowed(story)["infer"]
    if then in ("Listing", "Settled"):
        assert client_key(story) == key


LATE = ["Publishing", "Replacing", "Retiring"]


@pytest.mark.parametrize("until", LATE)
def test_the_keys_that_go_are_let_in_to_the_end_though_their_secret_is_lost(until: str) -> None:
    """There is no copy of them any more but those that clients have."""
    story, clock = rotating(until)
    old = {role: publics(FIRST)[role] for role in ("infer", "admin")}
    del story.chest.secrets["smollm-keys-1"]
    for _ in range(9):
        story.ready(0, 1)
        story.plan(clock - 1)
        if step(story) == "Settled":
            break
        assert {role for role, key in old.items() if key in allowed(story)[role]} == {*old}
        clock += LAG
    assert step(story) == "Settled"
    assert not {*old.values()} & {*allowed(story)["infer"], *allowed(story)["admin"]}


@pytest.mark.parametrize("until", ["Listing", *LATE])
def test_whoever_deletes_the_keys_of_both_generations_shuts_all_clients_out(until: str) -> None:
    story, end = rotating(until)
    before = {key for role in ("infer", "admin") for key in allowed(story)[role]}
    story.chest.secrets.clear()
    for clock in (end - 1, end, end + 1):
        story.plan(clock)
        assert not before & {*allowed(story)["infer"], *allowed(story)["admin"]}
        assert client_key(story) not in before


def test_a_key_that_goes_does_not_come_back_as_the_next_one_s() -> None:
    story, end = rotating("Publishing")
    copy = story.chest.secrets["smollm-client"]
    old = {"secret-key": numbered(FIRST["infer"]), "public-key": numbered(-FIRST["infer"])}
    story.chest.secrets["smollm-client"] = msgspec.structs.replace(copy, pairs=old)
    del story.chest.secrets["smollm-keys-2"]
    story.plan(end - 1)
    assert client_key(story) not in ("", publics(FIRST)["infer"])
