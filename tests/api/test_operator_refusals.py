"""What the operator does where the API server, or somebody else's object, is in its way."""

import json

import pytest

from support.eventually import eventually
from support.operator_cluster import WAIT, engine_cluster, engine_core, refusing, wait_available
from support.operator_process import Kubectl, OperatorRunner

pytestmark = [pytest.mark.api, pytest.mark.timeout(180)]


def test_names_of_others_are_left_alone(kubectl: Kubectl, runner: OperatorRunner) -> None:
    runner.start()
    name = "smollm-client-addresses"
    theirs = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
    kubectl.apply({**theirs, "data": {"theirs": "yes"}})
    kubectl.apply(engine_cluster(replicas=1))
    eventually(
        lambda: kubectl.condition("enginecluster", "smollm", "Degraded") == ("True", "NameTaken"),
        deadline=WAIT,
    )
    assert kubectl.get("configmap", name)["data"] == {"theirs": "yes"}


def test_pod_the_api_refuses(kubectl: Kubectl, runner: OperatorRunner) -> None:
    """A spec of 300 KB: each part is allowed, a pod cannot hold their sum."""
    runner.start()
    notes = {f"note-{i}": "x" * 60_000 for i in range(5)}
    document = engine_core(podTemplate={"metadata": {"annotations": notes}})
    kubectl.run("create", "-f", "-", stdin=json.dumps(document))
    eventually(
        lambda: kubectl.condition("enginecore", "solo", "Ready") == ("False", "RefusedByApi"),
        deadline=WAIT,
    )
    (note,) = eventually(lambda: kubectl.events("RefusedByApi"))
    assert "metadata.annotations" in note
    kubectl.patch("enginecore", "solo", {"spec": {"podTemplate": {"metadata": None}}})
    eventually(lambda: kubectl.condition("enginecore", "solo", "Ready")[0] == "True", deadline=WAIT)


def test_engines_serve_whose_coordinator_the_api_refuses(
    kubectl: Kubectl, runner: OperatorRunner
) -> None:
    labels = {"matchLabels": {"a": "b"}}
    pod = {
        "metadata": {"labels": {"a": "b"}},
        "spec": {"containers": [{"name": "c", "image": "c"}]},
    }
    probe = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "probe"},
        "spec": {"selector": labels, "template": pod},
    }

    def degraded() -> tuple[str, str]:
        return kubectl.condition("enginecluster", "smollm", "Degraded")

    with refusing(kubectl, probe, "deployments"):
        operator = runner.start()
        kubectl.apply(engine_cluster(replicas=2))
        wait_available(kubectl, 2)
        eventually(lambda: degraded() == ("True", "RefusedByApi"), deadline=WAIT)
        kubectl.run("delete", "pod", "smollm-0-1")

        def told() -> bool:
            pods = kubectl.find_all("pods", "enginecore.dev/core=smollm-0")
            ips = {p["metadata"]["name"]: p["status"].get("podIP") for p in pods}
            status = kubectl.get("enginecluster", "smollm")["status"]
            address = status["clientAddresses"]["input_address"][0]
            data = kubectl.get("configmap", "smollm-client-addresses")["data"]
            listed = json.loads(data["client_addresses.json"])["input_address"][0]
            return address == listed == f"tcp://{ips.get('smollm-0-2')}:5557"

        eventually(told, "the new address is told", WAIT)
        wait_available(kubectl, 2)
        settled = ("False", "Settled")
        eventually(
            lambda: kubectl.condition("enginecluster", "smollm", "Progressing") == settled,
            deadline=WAIT,
        )
        assert degraded() == ("True", "RefusedByApi")
        version = kubectl.get("enginecluster", "smollm")["metadata"]["resourceVersion"]
        first = operator.text.count("no deployments here")
        again = 'reconcile_total{kind="EngineCluster",outcome="ok"}'

        def passes() -> float:
            lines = [line for line in operator.get("/metrics").splitlines() if again in line]
            return sum(float(line.split()[-1]) for line in lines)

        before = passes()
        eventually(lambda: passes() > before, "it is tried again", WAIT)
        meta = kubectl.get("enginecluster", "smollm")["metadata"]
        assert meta["resourceVersion"] == version, "a refusal that stays writes nothing"
        assert operator.text.count("no deployments here") == first
        assert len(kubectl.events("RefusedByApi")) == 1
    eventually(lambda: degraded() == ("False", "AsExpected"), deadline=WAIT)
    assert kubectl.get("deployment", "smollm-coordinator")
