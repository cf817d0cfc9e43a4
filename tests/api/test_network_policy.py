"""NetworkPolicies of engines and coordinator, by a real API server."""

import json
from typing import Any

import pytest

from support.eventually import eventually, throughout
from support.operator_cluster import engine_cluster, engine_core
from support.operator_process import Kubectl, OperatorRunner

pytestmark = [pytest.mark.api, pytest.mark.timeout(180)]

WAIT = 40.0
STILL = 3.0
ENGINES, COORDINATOR, SOLO = "smollm-engines", "smollm-coordinator", "solo-engine"
CLIENT = {"podSelector": {"matchLabels": {"client.enginecore.dev/smollm": "true"}}}


def policies(kubectl: Kubectl) -> dict[str, dict[str, Any]]:
    return {p["metadata"]["name"]: p for p in kubectl.find_all("networkpolicies")}


def peers(policy: dict[str, Any], port: str) -> list[dict[str, Any]] | None:
    """Return who may connect to a port; None: everybody."""
    for rule in policy["spec"]["ingress"]:
        if port in [entry["port"] for entry in rule["ports"]]:
            found: list[dict[str, Any]] | None = rule.get("from")
            return found
    raise AssertionError(f"{policy['metadata']['name']} has no rule for {port}")


def wait_for(kubectl: Kubectl, *names: str) -> dict[str, dict[str, Any]]:
    eventually(lambda: set(policies(kubectl)) == set(names), f"policies: {names}", WAIT)
    return policies(kubectl)


def set_transport(kubectl: Kubectl, kind: str, name: str, **transport: Any) -> None:
    kubectl.patch(kind, name, {"spec": {"transport": transport}})


def wait_ready(kubectl: Kubectl, name: str) -> None:
    def ready() -> bool:
        there = kubectl.run("get", "enginecore", name, "--ignore-not-found")
        return bool(there) and kubectl.condition("enginecore", name, "Ready")[0] == "True"

    eventually(ready, f"{name} is Ready", WAIT)


def test_of_a_cluster(kubectl: Kubectl, runner: OperatorRunner) -> None:
    operator = runner.start()
    kubectl.apply(engine_cluster(replicas=1))
    made = wait_for(kubectl, ENGINES, COORDINATOR)
    uid = kubectl.get("enginecluster", "smollm")["metadata"]["uid"]
    for policy in made.values():
        (owner,) = policy["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"], owner["controller"]) == ("EngineCluster", uid, True)
    assert CLIENT in (peers(made[ENGINES], "input") or [])
    wait_ready(kubectl, "smollm-0")

    # Ports go by their names: what others the engines get changes no policy.
    before = made[ENGINES]["metadata"]["resourceVersion"]
    set_transport(kubectl, "enginecluster", "smollm", inputPort=7001)

    def moved() -> bool:
        status = kubectl.get("enginecore", "smollm-0").get("status", {})
        return bool(status.get("inputAddress", "").endswith(":7001"))

    eventually(moved, "the engine is on another port", WAIT)
    assert policies(kubectl)[ENGINES]["metadata"]["resourceVersion"] == before
    epoch = kubectl.get("enginecore", "smollm-0")["status"]["epoch"]

    set_transport(kubectl, "enginecluster", "smollm", expose="NodePort")
    eventually(lambda: peers(policies(kubectl)[ENGINES], "input") is None, "it is open", WAIT)
    assert peers(policies(kubectl)[ENGINES], "http") is not None
    set_transport(kubectl, "enginecluster", "smollm", expose="None")
    eventually(lambda: CLIENT in (peers(policies(kubectl)[ENGINES], "input") or []), deadline=WAIT)

    set_transport(kubectl, "enginecluster", "smollm", networkPolicy="None")
    wait_for(kubectl)
    set_transport(kubectl, "enginecluster", "smollm", networkPolicy="Clients")
    wait_for(kubectl, ENGINES, COORDINATOR)
    assert kubectl.get("enginecore", "smollm-0")["status"]["epoch"] == epoch
    assert "bug" not in operator.get("/metrics")


def test_what_others_do_to_a_policy_is_undone(kubectl: Kubectl, runner: OperatorRunner) -> None:
    runner.start()
    kubectl.apply(engine_cluster(replicas=0))
    made = wait_for(kubectl, ENGINES, COORDINATOR)[ENGINES]
    opened = [{"op": "remove", "path": "/spec/ingress/0/from"}]
    kubectl.run("patch", "networkpolicy", ENGINES, "--type=json", "-p", json.dumps(opened))

    def is_as_made() -> bool:
        there = policies(kubectl).get(ENGINES)
        return there is not None and there["spec"] == made["spec"]

    eventually(is_as_made, "an edited policy is brought back", WAIT)
    label = "app.kubernetes.io/managed-by"
    kubectl.run("label", "--overwrite", "networkpolicy", ENGINES, f"{label}=somebody")
    eventually(
        lambda: policies(kubectl)[ENGINES]["metadata"]["labels"][label] == "enginecore-operator",
        "one that lost its labels is taken back",
        WAIT,
    )
    kubectl.run("delete", "networkpolicy", ENGINES)
    eventually(is_as_made, "a deleted one is made again", WAIT)
    versions = {n: p["metadata"]["resourceVersion"] for n, p in policies(kubectl).items()}

    def unchanged() -> None:
        now = {n: p["metadata"]["resourceVersion"] for n, p in policies(kubectl).items()}
        assert now == versions

    kubectl.run("annotate", "enginecluster", "smollm", "look=again")
    throughout(STILL, unchanged)


def test_of_an_engine_of_no_cluster(kubectl: Kubectl, runner: OperatorRunner) -> None:
    runner.start()
    kubectl.apply(engine_core())
    made = wait_for(kubectl, SOLO)[SOLO]
    uid = kubectl.get("enginecore", "solo")["metadata"]["uid"]
    assert made["metadata"]["ownerReferences"][0]["uid"] == uid
    wait_ready(kubectl, "solo")
    set_transport(kubectl, "enginecore", "solo", expose="LoadBalancer")
    eventually(lambda: peers(policies(kubectl)[SOLO], "output") is None, "it is open", WAIT)
    set_transport(kubectl, "enginecore", "solo", networkPolicy="None")
    wait_for(kubectl)
    set_transport(kubectl, "enginecore", "solo", networkPolicy="Clients")
    wait_for(kubectl, SOLO)
    assert kubectl.get("enginecore", "solo")["status"]["epoch"] == 1
    kubectl.run("delete", "enginecore", "solo")
    wait_for(kubectl)


def test_another_s_policy_on_an_engine_s_name(kubectl: Kubectl, runner: OperatorRunner) -> None:
    runner.start()
    theirs = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": SOLO},
        "spec": {"podSelector": {"matchLabels": {"app": "theirs"}}},
    }
    kubectl.apply(theirs)
    kubectl.apply(engine_core())
    eventually(
        lambda: kubectl.condition("enginecore", "solo", "Ready") == ("False", "NameTaken"),
        "the engine says what is in its way",
        WAIT,
    )
    selector = policies(kubectl)[SOLO]["spec"]["podSelector"]
    assert selector == theirs["spec"]["podSelector"]  # type: ignore[index]
    assert SOLO in kubectl.events("NameTaken")[0]
    kubectl.run("delete", "networkpolicy", SOLO)
    wait_ready(kubectl, "solo")
    assert "enginecore.dev/core" in policies(kubectl)[SOLO]["metadata"]["labels"]
