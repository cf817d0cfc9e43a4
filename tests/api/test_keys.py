"""Keys of transport.security Curve, made by the operator with a real API server and its rights."""

import base64
import json
from typing import Any

import pytest
import zmq

from support.eventually import eventually
from support.operator_cluster import engine_cluster, engine_core, refusing
from support.operator_process import Kubectl, OperatorProcess, OperatorRunner

pytestmark = [pytest.mark.api, pytest.mark.timeout(180)]

WAIT = 40.0
CURVE = {"transport": {"security": "Curve"}}
SECRETS = ["smollm-admin", "smollm-client", "smollm-keys-1"]


def secrets(kubectl: Kubectl, selector: str = "enginecore.dev/cluster") -> dict[str, Any]:
    return {s["metadata"]["name"]: s for s in kubectl.find_all("secrets", selector)}


def entry(secret: dict[str, Any], name: str) -> str:
    return base64.b64decode(secret["data"][name]).decode()


def public(secret: dict[str, Any], name: str) -> str:
    """Return the public key that belongs to an entry."""
    return zmq.curve_public(entry(secret, name).encode()).decode()


def addresses(kubectl: Kubectl) -> dict[str, Any]:
    found: dict[str, Any] = kubectl.get("enginecluster", "smollm")["status"]["clientAddresses"]
    return found


def wait_ready(kubectl: Kubectl, replicas: int = 1) -> None:
    def ready() -> bool:
        status = kubectl.get("enginecluster", "smollm").get("status", {})
        found = addresses(kubectl).get("server_key", []) if status else []
        return status.get("readyReplicas") == replicas and all(found) and len(found) == replicas

    eventually(ready, "ready, and their keys are told", WAIT)


def keys_status(kubectl: Kubectl) -> dict[str, Any]:
    status = kubectl.get("enginecluster", "smollm").get("status", {})
    found: dict[str, Any] = status.get("keys") or {}
    return found


def assert_tells_no_secret(
    operator: OperatorProcess, kubectl: Kubectl, found: dict[str, Any]
) -> None:
    """Neither the log nor any object but the Secrets has a secret key, plain or encoded."""
    text = operator.text
    for kind in ("events.events.k8s.io", "configmaps", "pods", "engineclusters", "enginecores",
                 "deployments"):  # fmt: skip
        text += json.dumps(kubectl.find_all(kind))
    for secret in found.values():
        for name, encoded in secret["data"].items():
            if name != "public-key":
                assert encoded not in text
                assert json.dumps(entry(secret, name))[1:-1] not in text
                assert entry(secret, name) not in operator.text


def test_keys_are_made_once(kubectl: Kubectl, runner: OperatorRunner) -> None:
    operator = runner.start()
    kubectl.apply(engine_cluster(replicas=2, **CURVE))
    wait_ready(kubectl, 2)
    found = secrets(kubectl)
    assert sorted(found) == SECRETS
    cluster = kubectl.get("enginecluster", "smollm")["metadata"]
    for secret in found.values():
        (owner,) = secret["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == (cluster["uid"], True)
    keys = found["smollm-keys-1"]
    assert entry(found["smollm-client"], "secret-key") == entry(keys, "infer")
    assert entry(found["smollm-client"], "public-key") == public(keys, "infer")
    assert entry(found["smollm-admin"], "secret-key") == entry(keys, "admin")
    told = addresses(kubectl)
    assert told["server_key"] == [public(keys, "server")] * 2
    assert told["stats_server_key"] == public(keys, "coordinator")
    document = kubectl.get("configmap", "smollm-client-addresses")["data"]
    assert json.loads(document["client_addresses.json"]) == told
    pod = kubectl.get("pod", "smollm-0-1")
    assert pod["metadata"]["annotations"]["enginecore.dev/server-key"] == public(keys, "server")
    listed = kubectl.get("configmap", "smollm-allowed-keys")["data"]
    assert listed["infer"].split()[0] == public(keys, "infer")

    versions = {name: s["metadata"]["resourceVersion"] for name, s in found.items()}
    operator.kill()
    second = runner.start(IDENTITY="operator-0")
    kubectl.patch("enginecluster", "smollm", {"spec": {"replicas": 3}})
    wait_ready(kubectl, 3)
    now = {name: s["metadata"]["resourceVersion"] for name, s in secrets(kubectl).items()}
    assert now == versions
    assert [c["status"]["epoch"] for c in kubectl.find_all("enginecores")] == [1, 1, 1]
    assert "bug" not in second.get("/metrics")
    assert_tells_no_secret(operator, kubectl, found)
    assert_tells_no_secret(second, kubectl, found)


def test_another_generation_replaces_engines_and_goes_on(
    kubectl: Kubectl, runner: OperatorRunner
) -> None:
    operator = runner.start(KEY_LAG_SECONDS="4")
    drain = {"drain": {"deadlineSeconds": 1}}
    kubectl.apply(engine_cluster(replicas=2, **CURVE, **drain))
    wait_ready(kubectl, 2)
    before = secrets(kubectl)
    key = {"keys": {"generation": 2}}
    kubectl.patch("enginecluster", "smollm", {"spec": key})
    eventually(lambda: keys_status(kubectl).get("step") == "Retiring", "all replaced", WAIT)
    listed = kubectl.get("configmap", "smollm-allowed-keys")["data"]
    generations = [line.split()[1] for line in listed["infer"].splitlines()]
    assert sorted(generations) == ["generation-1", "generation-2"]
    eventually(lambda: keys_status(kubectl)["step"] == "Settled", "the old ones went", WAIT)
    after = secrets(kubectl)
    assert sorted(after) == sorted([*SECRETS, "smollm-keys-2"])
    assert not after["smollm-keys-1"].get("data")
    keys = after["smollm-keys-2"]
    assert entry(after["smollm-client"], "secret-key") == entry(keys, "infer")
    assert entry(before["smollm-client"], "secret-key") != entry(keys, "infer")
    assert addresses(kubectl)["server_key"] == [public(keys, "server")] * 2
    eventually(
        lambda: addresses(kubectl)["stats_server_key"] == public(keys, "coordinator"), deadline=WAIT
    )
    listed = kubectl.get("configmap", "smollm-allowed-keys")["data"]
    assert [line.split()[1] for line in listed["infer"].splitlines()] == ["generation-2"]
    assert [c["status"]["epoch"] for c in kubectl.find_all("enginecores")] == [2, 2]
    steps = [note.partition(":")[0] for note in kubectl.events("KeysChanging")]
    assert {*steps} == {"Listing", "Publishing", "Replacing", "Retiring", "Settled"}
    assert "bug" not in operator.get("/metrics")
    assert_tells_no_secret(operator, kubectl, {**before, "smollm-keys-2": keys})


def test_another_s_secret_is_left_alone(kubectl: Kubectl, runner: OperatorRunner) -> None:
    meta = {"name": "smollm-keys-1"}
    data = {"password": "mine"}
    kubectl.apply({"apiVersion": "v1", "kind": "Secret", "metadata": meta, "stringData": data})
    operator = runner.start()
    kubectl.apply(engine_cluster(replicas=1, **CURVE))

    def degraded() -> bool:
        status = kubectl.get("enginecluster", "smollm").get("status", {})
        found = {c["type"]: c for c in status.get("conditions", [])}
        told = found.get("Degraded", {})
        return told.get("reason") == "NameTaken" and "Secret smollm-keys-1" in told["message"]

    eventually(degraded, "it is named", WAIT)
    there = kubectl.get("secret", "smollm-keys-1")
    assert entry(there, "password") == "mine"
    assert list(there["data"]) == ["password"]
    assert not kubectl.find_all("enginecores")
    kubectl.run("delete", "secret", "smollm-keys-1")
    wait_ready(kubectl)
    assert "bug" not in operator.get("/metrics")


def test_a_secret_that_was_deleted_is_made_again(kubectl: Kubectl, runner: OperatorRunner) -> None:
    runner.start(RESYNC_SECONDS="2")
    kubectl.apply(engine_cluster(replicas=1, **CURVE))
    wait_ready(kubectl)
    before = secrets(kubectl)
    kubectl.run("delete", "secret", "smollm-client", "smollm-keys-1")
    eventually(lambda: sorted(secrets(kubectl)) == SECRETS, "both are back", WAIT)
    assert len(kubectl.events("KeysMade")) == 2
    eventually(
        lambda: (
            addresses(kubectl).get("server_key")
            == [public(secrets(kubectl)["smollm-keys-1"], "server")]
        ),
        "the engine has the new key",
        WAIT,
    )
    kubectl.run("delete", "secret", "smollm-client")
    eventually(lambda: sorted(secrets(kubectl)) == SECRETS, "made from the other", WAIT)
    now = secrets(kubectl)
    assert entry(now["smollm-client"], "secret-key") == entry(now["smollm-keys-1"], "infer")
    assert now["smollm-keys-1"]["data"] != before["smollm-keys-1"]["data"]


def test_an_engine_of_its_own(kubectl: Kubectl, runner: OperatorRunner) -> None:
    operator = runner.start(KEY_LAG_SECONDS="1")
    kubectl.apply(engine_core(**CURVE, drain={"deadlineSeconds": 1}))

    def server_key() -> str:
        return str(kubectl.get("enginecore", "solo").get("status", {}).get("serverKey", ""))

    first = eventually(server_key, "it is there with its key", WAIT)
    found = secrets(kubectl, "enginecore.dev/core")
    assert sorted(found) == ["solo-admin", "solo-client", "solo-keys-1"]
    assert first == public(found["solo-keys-1"], "server")
    listed = kubectl.get("configmap", "solo-allowed-keys")
    assert public(found["solo-keys-1"], "infer") in listed["data"]["infer"]
    key = "k" * 40
    kubectl.patch("enginecore", "solo", {"spec": {"keys": {"infer": [key]}}})
    eventually(
        lambda: key in kubectl.get("configmap", "solo-allowed-keys")["data"]["infer"],
        "listed",
        WAIT,
    )
    kubectl.patch("configmap", "solo-allowed-keys", {"data": {"infer": ""}})
    eventually(
        lambda: key in kubectl.get("configmap", "solo-allowed-keys")["data"]["infer"], "again", WAIT
    )
    assert kubectl.get("enginecore", "solo")["status"]["epoch"] == 1
    kubectl.patch("enginecore", "solo", {"spec": {"keys": {"generation": 2}}})
    eventually(lambda: server_key() not in ("", first), "it has another key", WAIT)
    assert kubectl.get("enginecore", "solo")["status"]["epoch"] == 2
    assert "bug" not in operator.get("/metrics")


def test_curve_is_taken_up_and_given_up_engine_by_engine(
    kubectl: Kubectl, runner: OperatorRunner
) -> None:
    operator = runner.start()
    plain = {"transport": {"security": "None"}}
    kubectl.apply(engine_cluster(replicas=2, **plain))

    def settled(epoch: int) -> bool:
        cores = kubectl.find_all("enginecores")
        status = kubectl.get("enginecluster", "smollm").get("status", {})
        epochs = [core.get("status", {}).get("epoch") for core in cores]
        done = kubectl.condition("enginecluster", "smollm", "Progressing") == ("False", "Settled")
        return epochs == [epoch] * 2 and status.get("readyReplicas") == 2 and done

    eventually(lambda: settled(1), "without CURVE", WAIT)
    assert "server_key" not in addresses(kubectl)
    assert not secrets(kubectl)
    for epoch, security in ((2, "Curve"), (3, "None")):
        transport = {"spec": {"transport": {"security": security}}}
        kubectl.patch("enginecluster", "smollm", transport)
        eventually(lambda epoch=epoch: settled(epoch), f"with {security}", WAIT)
        assert ("server_key" in addresses(kubectl)) == (security == "Curve")
        updated = kubectl.events("Updated")
        assert len(updated) == 2 * (epoch - 1), "one after another"
    assert "bug" not in operator.get("/metrics")


PROBE = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "probe"}}


def test_secrets_that_the_api_server_refuses(kubectl: Kubectl, runner: OperatorRunner) -> None:
    with refusing(kubectl, PROBE, "secrets"):
        operator = runner.start()
        kubectl.apply(engine_cluster(replicas=1, **CURVE))

        def degraded() -> bool:
            found = kubectl.condition("enginecluster", "smollm", "Degraded")
            return found == ("True", "RefusedByApi")

        eventually(degraded, "it says so", WAIT)
        assert "no secrets here" in kubectl.events("RefusedByApi")[0]
        assert not kubectl.find_all("enginecores")
        assert "bug" not in operator.get("/metrics")


def test_a_cluster_goes_on_while_the_api_server_refuses_its_secrets(
    kubectl: Kubectl, runner: OperatorRunner
) -> None:
    operator = runner.start()
    kubectl.apply(engine_cluster(replicas=1, **CURVE))
    wait_ready(kubectl)
    before, keys = addresses(kubectl), keys_status(kubectl)
    with refusing(kubectl, PROBE, "secrets"):
        spec = {"keys": {"generation": 2}, "replicas": 2}
        kubectl.patch("enginecluster", "smollm", {"spec": spec})
        eventually(
            lambda: (
                kubectl.condition("enginecluster", "smollm", "Degraded") == ("True", "RefusedByApi")
            ),
            "it says so",
            WAIT,
        )
        eventually(
            lambda: addresses(kubectl)["input_address"] == [*before["input_address"], ""],
            "addresses are told as before",
            WAIT,
        )
        assert addresses(kubectl)["server_key"] == [*before["server_key"], ""]
        assert addresses(kubectl)["stats_server_key"] == before["stats_server_key"]
        assert keys_status(kubectl) == keys
    eventually(lambda: keys_status(kubectl)["step"] == "Listing", "it comes in", WAIT)
    wait_ready(kubectl, 2)
    assert kubectl.condition("enginecluster", "smollm", "Degraded")[0] == "False"
    assert "bug" not in operator.get("/metrics")
