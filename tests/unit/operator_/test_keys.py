"""Keys of a cluster and of an engine of its own: made, kept, found missing, another's, renewed."""

import msgspec
import pytest

from enginecore_operator.api import labels
from enginecore_operator.api.v1alpha1 import EngineClusterSpec
from enginecore_operator.api.validate import read_spec
from enginecore_operator.kube.secrets import read_secret
from enginecore_operator.plan.keys import cluster_holder, core_holder
from enginecore_operator.plan.observed import ClusterView, CoreView, ObjectMeta, ObservedObject
from support.cluster_story import ClusterStory, settled
from support.key_chest import LAG, SECURED, numbered
from support.key_stories import (
    FIRST,
    REPLICAS,
    SECOND,
    allowed,
    applied_cores,
    client_key,
    publics,
    secured,
    step,
)
from support.operator_objects import (
    NAMESPACE,
    CoreStory,
    created,
    observed_cluster,
    observed_core,
    running,
    started,
    told,
)


def foreign_map(name: str) -> ObservedObject:
    return ObservedObject(ObjectMeta(name=name, namespace=NAMESPACE, uid="other"), {"data": {}})


def test_a_cluster_gets_its_keys_once() -> None:
    story = ClusterStory(replicas=REPLICAS, **SECURED)
    plan = story.plan()
    assert sorted(story.chest.secrets) == ["smollm-admin", "smollm-client", "smollm-keys-1"]
    assert story.chest.public("smollm-keys-1") == publics(FIRST)
    for secret in story.chest.secrets.values():
        assert secret.metadata.is_controlled_by("uid-smollm")
        assert secret.metadata.labels[labels.CLUSTER] == "smollm"
    assert told(plan)[0] == "KeysMade"
    first = publics(FIRST)
    assert allowed(story) == {
        "infer": [first["infer"]],
        "admin": [first["admin"]],
        "server": [first["server"]],
        "coordinator": [first["coordinator"]],
    }
    story.ready(0, 1)
    story.plan()
    addresses = story.status.client_addresses
    assert addresses.server_key == [first["server"]] * REPLICAS
    before = story.chest.secrets.copy()
    plan = story.plan(1000)
    assert (plan.stages, plan.events, plan.requeue_after) == ((), (), None)
    assert story.chest.secrets == before


def test_curve_is_what_a_spec_means_that_does_not_say() -> None:
    spec = {"model": {"name": "tiny"}}
    assert read_spec(spec, EngineClusterSpec).transport.security == "Curve"
    assert cluster_holder(ClusterView(cluster=observed_cluster(spec))) is not None
    assert core_holder(CoreView(core=observed_core(spec))) is not None


def test_no_keys_without_curve() -> None:
    story = settled(REPLICAS)
    assert not story.chest.secrets
    assert story.status.keys is None
    assert story.status.client_addresses.server_key is None


def test_the_coordinator_s_key_is_told_with_its_address() -> None:
    story = secured()
    service = story.objects["Service"]["smollm-coordinator"]
    raw = {**service.raw, "spec": {**service.raw["spec"], "clusterIP": "10.1.0.1"}}
    story.objects["Service"]["smollm-coordinator"] = ObservedObject(service.metadata, raw)
    story.plan()
    assert story.status.client_addresses.stats_server_key == publics(FIRST)["coordinator"]
    data = story.objects["ConfigMap"]["smollm-client-addresses"].raw["data"]
    for document in data.values():
        found = msgspec.json.decode(document)
        assert found["server_key"] == [publics(FIRST)["server"]] * REPLICAS
        assert found["stats_server_key"] == publics(FIRST)["coordinator"]


def test_clients_outside_get_the_keys_too() -> None:
    story = secured(transport={"security": "Curve", "expose": "NodePort"})
    assert story.status.exposed_addresses is not None
    assert story.status.exposed_addresses.server_key == [publics(FIRST)["server"]] * REPLICAS


def test_another_generation_comes_in_step_by_step() -> None:
    story = secured()
    story.change_spec(replicas=REPLICAS, keys={"generation": 2}, **SECURED)
    first, second = publics(FIRST), publics(SECOND)
    both = {name: [first[name], second[name]] for name in FIRST}

    plan = story.plan(0)
    assert (step(story), told(plan)[0]) == ("Listing", "KeysChanging")
    assert {name: set(keys) for name, keys in allowed(story).items()} == {
        name: set(keys) for name, keys in both.items()
    }
    assert allowed(story)["coordinator"] == both["coordinator"], "the present one comes first"
    assert client_key(story) == first["infer"]
    assert applied_cores(plan) == []
    assert plan.requeue_after == LAG

    story.plan(LAG - 1)
    assert (step(story), client_key(story)) == ("Listing", first["infer"])
    plan = story.plan(LAG)
    assert (step(story), client_key(story)) == ("Publishing", second["infer"])
    assert applied_cores(plan) == [], "clients are to have their keys before"

    plan = story.plan(2 * LAG)
    assert step(story) == "Replacing"
    assert applied_cores(plan) == ["smollm-1"]
    assert allowed(story)["coordinator"] == both["coordinator"][::-1]
    assert story.plan(2 * LAG + 1).stages == ()
    story.ready(1)
    plan = story.plan(2 * LAG + 2)
    assert story.status.client_addresses.server_key == [first["server"], second["server"]]
    assert applied_cores(plan) == ["smollm-0"]
    story.plan(2 * LAG + 3)
    assert step(story) == "Replacing"
    story.ready(0)

    end = 2 * LAG + 4
    story.plan(end)
    assert step(story) == "Retiring"
    assert set(allowed(story)["infer"]) == set(both["infer"])
    story.plan(end + LAG - 1)
    assert step(story) == "Retiring"
    story.plan(end + LAG)
    assert step(story) == "Settled"
    assert allowed(story) == {name: [key] for name, key in second.items()}
    assert story.chest.public("smollm-keys-1") == {}, "old secret keys go"
    assert story.status.keys is not None
    assert story.status.keys.generation == 2
    plan = story.plan(10_000)
    assert (plan.stages, plan.events) == ((), ())


def test_a_generation_that_is_wanted_meanwhile_waits_for_the_one_before() -> None:
    story = secured()
    story.change_spec(replicas=REPLICAS, keys={"generation": 2}, **SECURED)
    story.plan(0)
    story.plan(LAG)
    assert step(story) == "Publishing"
    story.change_spec(replicas=REPLICAS, keys={"generation": 1}, **SECURED)
    clock = 2 * LAG
    story.plan(clock)
    assert step(story) == "Replacing"
    for rank in (1, 0):
        story.ready(rank)
        story.plan(clock)
    assert step(story) == "Retiring"
    clock += LAG
    story.plan(clock)
    assert step(story) == "Settled"
    story.plan(clock + 1)
    assert step(story) == "Listing"
    assert story.chest.public("smollm-keys-1")["server"] == numbered(9).public, "never used again"


@pytest.mark.parametrize("what", ["infer", "published"])
def test_a_step_waits_until_it_is_seen(what: str) -> None:
    """What somebody undoes is done again, and the time runs anew."""
    story = secured()
    story.change_spec(replicas=REPLICAS, keys={"generation": 2}, **SECURED)
    story.plan(0)
    if what == "infer":
        there = story.objects["ConfigMap"]["smollm-allowed-keys"]
        raw = {**there.raw, "data": {**there.raw["data"], "infer": ""}}
        story.objects["ConfigMap"]["smollm-allowed-keys"] = ObservedObject(there.metadata, raw)
        story.plan(LAG)
        assert step(story) == "Listing"
        assert len(allowed(story)["infer"]) == 2
        story.plan(2 * LAG)
        assert step(story) == "Publishing"
        return
    story.plan(LAG)
    story.chest.lose("smollm-client", "secret-key")
    story.plan(2 * LAG)
    assert step(story) == "Publishing"
    assert client_key(story) == publics(SECOND)["infer"]
    story.plan(3 * LAG)
    assert step(story) == "Replacing"


@pytest.mark.parametrize(
    ("name", "starts"),
    [("smollm-keys-1", False), ("smollm-client", True), ("smollm-admin", True)],
)
def test_another_s_secret_is_never_touched(name: str, starts: bool) -> None:
    story = ClusterStory(replicas=1, **SECURED)
    story.chest.put_foreign(name)
    before = story.chest.secrets[name]
    plan = story.plan()
    assert story.chest.secrets[name] is before
    assert story.condition("Degraded") == ("True", "NameTaken")
    assert f"Secret {name}; delete them or rename the cluster" in story.message("Degraded")
    made = [manifest["kind"] for manifest in created(plan)]
    assert (labels.CORE_KIND in made) == starts
    assert ("Deployment" in made) == starts
    del story.chest.secrets[name]
    story.plan()
    assert story.condition("Degraded")[0] == "False"
    assert "smollm-0" in story.cores


def test_another_s_list_lets_nobody_in() -> None:
    story = ClusterStory(replicas=1, **SECURED)
    story.objects["ConfigMap"]["smollm-allowed-keys"] = foreign_map("smollm-allowed-keys")
    plan = story.plan()
    assert "ConfigMap smollm-allowed-keys" in story.message("Degraded")
    assert labels.CORE_KIND not in [manifest["kind"] for manifest in created(plan)]


def test_engines_go_on_while_keys_are_another_s() -> None:
    story = secured()
    story.chest.put_foreign("smollm-keys-1")
    plan = story.plan()
    assert applied_cores(plan) == []
    assert story.status.ready_replicas == REPLICAS
    assert story.condition("Degraded") == ("True", "NameTaken")


LOST = [
    ("smollm-client", ("secret-key",), False),
    ("smollm-client", ("public-key", "secret-key"), False),
    ("smollm-keys-1", ("infer", "admin"), False),
    ("smollm-keys-1", ("server",), True),
]


@pytest.mark.parametrize(("name", "entries", "replaces"), LOST)
@pytest.mark.parametrize("whole", [False, True], ids=["garbled", "deleted"])
def test_what_is_lost_is_made_again(
    name: str, entries: tuple[str, ...], replaces: bool, whole: bool
) -> None:
    """Clients' keys are kept twice: they are taken from the copy."""
    story = secured()
    before = {secret: story.chest.public(secret) for secret in story.chest.secrets}
    if whole:
        entries = tuple(before[name])
        del story.chest.secrets[name]
    else:
        story.chest.lose(name, *entries)
    plan = story.plan(1)
    after = {secret: story.chest.public(secret) for secret in story.chest.secrets}
    anew = {"server", "coordinator"} & {*entries}
    expected = before["smollm-keys-1"].items() - {
        (k, v) for k, v in before["smollm-keys-1"].items() if k in anew
    }
    assert expected <= after["smollm-keys-1"].items()
    assert after["smollm-client"] == before["smollm-client"]
    assert (applied_cores(plan) == ["smollm-1"]) == (replaces or "server" in entries)
    assert ("KeysMade" in told(plan)) == (name == "smollm-keys-1")
    if "server" in entries:
        lists = allowed(story)["server"]
        assert {before["smollm-keys-1"]["server"], after["smollm-keys-1"]["server"]} == {*lists}


def test_whoever_deletes_all_keys_shuts_all_clients_out() -> None:
    story = secured()
    story.chest.secrets.clear()
    plan = story.plan(1)
    second = publics(SECOND)
    assert (allowed(story)["infer"], allowed(story)["admin"]) == (
        [second["infer"]],
        [second["admin"]],
    )
    assert client_key(story) == second["infer"]
    assert applied_cores(plan) == ["smollm-1"]


def test_clients_keep_a_key_whose_secret_was_lost_on_the_way() -> None:
    """From when they may have it."""
    story = secured()
    story.change_spec(replicas=REPLICAS, keys={"generation": 2}, **SECURED)
    story.plan(0)
    del story.chest.secrets["smollm-keys-2"]
    story.plan(1)
    third = numbered(11).public
    assert allowed(story)["infer"] == [publics(FIRST)["infer"], third], "nobody had the other"
    story.plan(LAG + 5)
    assert client_key(story) == third
    del story.chest.secrets["smollm-keys-2"]
    story.plan(LAG + 6)
    assert (step(story), client_key(story)) == ("Publishing", third)
    assert third in allowed(story)["infer"]


def test_further_clients_are_listed_at_once() -> None:
    story = secured()
    key = "k" * 40
    story.change_spec(replicas=REPLICAS, keys={"infer": [key], "admin": [key]}, **SECURED)
    plan = story.plan()
    assert allowed(story)["infer"] == [publics(FIRST)["infer"], key]
    assert allowed(story)["admin"] == [publics(FIRST)["admin"], key]
    assert applied_cores(plan) == []


@pytest.mark.parametrize("security", ["Curve", "None"])
def test_curve_comes_and_goes_engine_by_engine(security: str) -> None:
    before = {"transport": {"security": "None" if security == "Curve" else "Curve"}}
    story = settled(REPLICAS, **before)
    story.change_spec(replicas=REPLICAS, transport={"security": security})
    assert applied_cores(story.plan()) == ["smollm-1"]
    story.ready(1)
    story.plan()
    key = numbered(1).public
    expected = ["", key] if security == "Curve" else [key, ""]
    assert story.status.client_addresses.server_key == expected


def test_an_engine_of_its_own_has_its_own_keys() -> None:
    story = started(**SECURED)
    assert sorted(story.chest.secrets) == ["smollm-0-admin", "smollm-0-client", "smollm-0-keys-1"]
    for secret in story.chest.secrets.values():
        assert secret.metadata.is_controlled_by("uid-smollm-0")
        assert secret.metadata.labels[labels.CORE] == "smollm-0"
    assert story.status.server_key == numbered(1).public
    before = story.status
    plan = story.plan(1000)
    assert (plan.stages, plan.events, plan.status) == ((), (), before)


def test_an_engine_of_its_own_gets_another_generation() -> None:
    story = started(**SECURED)
    story.change_spec(keys={"generation": 2}, **SECURED)
    for clock in (10.0, 10 + LAG, 10 + 2 * LAG):
        story.plan(clock)
    assert len(story.pods) == 2
    story.pods = [running(story.pods[1])]
    clock = 20 + 2 * LAG
    story.plan(clock)
    assert story.status.server_key == numbered(5).public
    assert story.status.keys is not None
    assert story.status.keys.step == "Retiring"
    story.plan(clock + LAG)
    assert story.status.keys.step == "Settled"
    assert story.chest.public("smollm-0-keys-1") == {}


def test_an_engine_of_its_own_waits_for_its_names() -> None:
    story = CoreStory(**SECURED)
    story.chest.put_foreign("smollm-0-keys-1")
    plan = story.plan()
    assert "Pod" not in [manifest["kind"] for manifest in created(plan)]
    assert story.condition("Ready") == ("False", "NameTaken")
    assert told(plan) == ["NameTaken"]
    del story.chest.secrets["smollm-0-keys-1"]
    assert "Pod" in [manifest["kind"] for manifest in created(story.plan(1))]


def test_a_running_engine_of_its_own_goes_on_without_them() -> None:
    story = started(**SECURED)
    story.chest.put_foreign("smollm-0-keys-1")
    story.plan(2)
    assert story.condition("Ready") == ("True", "PodReady")
    assert len(story.pods) == 1


def test_what_reads_as_a_key_of_a_secret() -> None:
    meta = {"name": "s", "uid": "u"}
    data = {"good": "RzVQelk0R3duMHFLV3E9cm4hNmE+RzlbJVBqK1dXXVMkWGk+IS96IQ==", "bad": "eA==",
            "no base64": "*"}  # fmt: skip
    secret = read_secret({"metadata": meta, "data": data})
    assert list(secret.pairs) == ["good"]
    assert secret.pairs["good"].secret not in repr(secret)
    assert read_secret({"metadata": meta}).pairs == {}
