"""The operator against a real API server, on simulated nodes."""

import json
import signal
import time

import pytest

from support.eventually import eventually, throughout
from support.operator_cluster import (
    WAIT,
    engine_cluster,
    engine_core,
    fake_node,
    pods_of,
    wait_available,
)
from support.operator_process import Kubectl, OperatorRunner, fail_pod

pytestmark = [pytest.mark.api, pytest.mark.timeout(180)]

ENGINES = "enginecore.dev/component=engine"


def test_cluster_becomes_available(kubectl: Kubectl, runner: OperatorRunner) -> None:
    operator = runner.start()
    kubectl.apply(engine_cluster(replicas=2))
    status = wait_available(kubectl, 2)
    assert kubectl.condition("enginecluster", "smollm", "Available")[0] == "True"
    addresses = status["clientAddresses"]
    pods = {p["metadata"]["name"]: p for p in kubectl.find_all("pods", ENGINES)}
    assert sorted(pods) == ["smollm-0-1", "smollm-1-1"]
    for rank in (0, 1):
        ip = pods[f"smollm-{rank}-1"]["status"]["podIP"]
        assert addresses["input_address"][rank] == f"tcp://{ip}:5557"
        assert addresses["output_address"][rank] == f"tcp://{ip}:5558"
    data = kubectl.get("configmap", "smollm-client-addresses")["data"]
    assert json.loads(data["client_addresses.json"]) == addresses
    service = kubectl.get("service", "smollm-coordinator")
    assert addresses["stats_update_address"] == f"tcp://{service['spec']['clusterIP']}:5560"
    assert kubectl.condition("enginecore", "smollm-0", "FactsKnown")[1] == "SimulatedNode"
    assert operator.get("/healthz") == "ok\n"
    metrics = operator.get("/metrics")
    assert "enginecore_operator_leader 1.0" in metrics
    assert 'enginecore_operator_reconcile_total{kind="EngineCore",outcome="ok"}' in metrics


def test_scale_subresource(kubectl: Kubectl, runner: OperatorRunner) -> None:
    runner.start()
    kubectl.apply(engine_cluster(replicas=1))
    wait_available(kubectl, 1)
    kubectl.run("scale", "enginecluster/smollm", "--replicas=3")
    wait_available(kubectl, 3)
    scale = json.loads(
        kubectl.run("get", "enginecluster", "smollm", "--subresource=scale", "-ojson")
    )
    assert scale["status"]["replicas"] == 3
    assert len(kubectl.find_all("pods", scale["status"]["selector"])) == 3
    kubectl.run("scale", "enginecluster/smollm", "--replicas=1")
    wait_available(kubectl, 1)
    eventually(
        lambda: [c["metadata"]["name"] for c in kubectl.find_all("enginecores")] == ["smollm-0"]
    )
    eventually(lambda: not pods_of(kubectl, "smollm-2"), "the pods are gone", WAIT)


def test_deleted_pod_is_replaced(kubectl: Kubectl, runner: OperatorRunner) -> None:
    runner.start()
    kubectl.apply(engine_cluster(replicas=1))
    wait_available(kubectl, 1)
    kubectl.run("delete", "pod", "smollm-0-1", "--wait=false")
    eventually(lambda: pods_of(kubectl, "smollm-0") == ["smollm-0-2"], "replaced", WAIT)
    wait_available(kubectl, 1)
    status = kubectl.get("enginecore", "smollm-0")["status"]
    assert (status["epoch"], status["restarts"]) == (2, 1)


def test_failing_engine_is_given_up_with_its_last_words(
    kubectl: Kubectl, runner: OperatorRunner
) -> None:
    runner.start()
    kubectl.apply(engine_core(restart={"initialSeconds": 0.5, "limit": 2}))
    for epoch in (1, 2):
        eventually(lambda name=f"solo-{epoch}": pods_of(kubectl, "solo") == [name], deadline=WAIT)
        eventually(lambda: kubectl.condition("enginecore", "solo", "Ready")[0] == "True")
        fail_pod(kubectl, f"solo-{epoch}", f"CUDA is unhappy, attempt {epoch}")
    eventually(
        lambda: (
            kubectl.condition("enginecore", "solo", "Ready") == ("False", "RestartLimitReached")
        ),
        deadline=WAIT,
    )
    status = kubectl.get("enginecore", "solo")["status"]
    assert status["phase"] == "Failed"
    assert "attempt 2" in status["failure"]["message"]
    notes = eventually(lambda: kubectl.events("RestartLimitReached"), "told in an Event")
    assert "attempt 2" in notes[0]
    assert pods_of(kubectl, "solo") == ["solo-2"]
    kubectl.patch("enginecore", "solo", {"spec": {"runtime": {"image": "better:2"}}})
    eventually(lambda: pods_of(kubectl, "solo") == ["solo-3"], "tries the new spec", WAIT)


def test_rollout_names_the_field(kubectl: Kubectl, runner: OperatorRunner) -> None:
    runner.start()
    kubectl.apply(engine_cluster(replicas=2))
    wait_available(kubectl, 2)
    kubectl.patch("enginecluster", "smollm", {"spec": {"runtime": {"args": ["--seed=7"]}}})
    wait_available(kubectl, 2)
    notes = eventually(lambda: len(found := kubectl.events("Updated")) == 2 and found)
    assert notes
    assert all("spec.runtime.args" in note for note in notes)
    pod = kubectl.find_all("pods", ENGINES)[0]
    environment = {v["name"]: v.get("value") for v in pod["spec"]["containers"][0]["env"]}
    assert json.loads(environment["ENGINECORE_CONFIG"])["runtime"]["args"] == ["--seed=7"]


def test_what_a_spec_no_longer_has_goes(kubectl: Kubectl, runner: OperatorRunner) -> None:
    runner.start()
    place = {"nodeSelector": {"kubernetes.io/os": "linux"}}
    kubectl.patch("node", "fake-0", {"metadata": {"labels": place["nodeSelector"]}})
    env = [{"name": "KEPT", "value": "1"}, {"name": "DROPPED", "value": "2"}]
    runtime, template = {"env": env}, {"metadata": {"labels": {"team": "a"}}, "spec": place}
    limits = {"limits": {"memory": "1Gi", "cpu": "1"}}
    document = engine_cluster(replicas=1, runtime=runtime, podTemplate=template, resources=limits)
    kubectl.apply(document)
    wait_available(kubectl, 1)
    kubectl.apply(
        engine_cluster(replicas=1, runtime={"env": env[:1]}, resources={"limits": {"cpu": "1"}})
    )
    wait_available(kubectl, 1)
    spec = kubectl.get("enginecore", "smollm-0")["spec"]
    assert spec["runtime"]["env"] == env[:1]
    assert spec["resources"]["limits"] == {"cpu": "1"}
    assert not spec["podTemplate"]["spec"].get("nodeSelector")
    assert not spec["podTemplate"]["metadata"].get("labels")
    pod = kubectl.get("pod", "smollm-0-2")
    assert "DROPPED" not in {e["name"] for e in pod["spec"]["containers"][0]["env"]}
    kubectl.patch("enginecluster", "smollm", {"spec": {"restart": {"limit": 5}}})
    settled = ("False", "Settled")
    eventually(
        lambda: kubectl.condition("enginecluster", "smollm", "Progressing") == settled,
        deadline=WAIT,
    )
    assert len(kubectl.events("Updated")) == 1


def test_other_ports_reach_the_services(kubectl: Kubectl, runner: OperatorRunner) -> None:
    runner.start()
    kubectl.apply(engine_cluster(replicas=1, transport={"expose": "NodePort"}))
    wait_available(kubectl, 1)
    ports = {"expose": "NodePort", "inputPort": 7001}
    kubectl.apply(engine_cluster(replicas=1, transport=ports))

    def changed(service: str) -> bool:
        found = kubectl.get("service", service)["spec"]["ports"]
        return {p["name"]: p["port"] for p in found if p["name"] != "http"} == {
            "input": 7001,
            "output": 5558,
        }

    eventually(lambda: changed("smollm-0-exposed"), "the engine's Service follows", WAIT)
    eventually(lambda: changed("smollm-engines"), "the cluster's Service follows", WAIT)
    wait_available(kubectl, 1)
    assert not kubectl.events("RefusedByApi")


def test_objects_of_an_older_operator_are_mended(kubectl: Kubectl, runner: OperatorRunner) -> None:
    """One that created by POST and applied over it: each of the two holds the fields."""
    operator = runner.start()
    env = [{"name": "KEPT", "value": "1"}, {"name": "DROPPED", "value": "2"}]
    kubectl.apply(engine_cluster(replicas=1, runtime={"env": env}))
    wait_available(kubectl, 1)
    operator.kill(signal.SIGTERM)
    core = kubectl.get("enginecore", "smollm-0")
    meta = {key: core["metadata"][key] for key in ("name", "labels", "ownerReferences")}
    document = {key: core[key] for key in ("apiVersion", "kind", "spec")} | {"metadata": meta}
    kubectl.run(
        *("apply", "--server-side", "--force-conflicts", "--field-manager=enginecore-operator"),
        *("-f", "-"),
        stdin=json.dumps(document),
    )
    shown = ("get", "enginecore", "smollm-0", "--show-managed-fields", "-o", "json")

    def managers() -> list[tuple[str, str]]:
        entries = json.loads(kubectl.run(*shown))["metadata"]["managedFields"]
        return sorted((e["manager"], e["operation"]) for e in entries if not e.get("subresource"))

    ours = "enginecore-operator"
    assert managers() == [(ours, "Apply"), (ours, "Update")]
    runner.start()
    kubectl.patch("enginecluster", "smollm", {"spec": {"runtime": {"env": env[:1]}}})
    wait_available(kubectl, 1)
    assert kubectl.get("enginecore", "smollm-0")["spec"]["runtime"]["env"] == env[:1]
    assert managers() == [(ours, "Apply")]


def test_what_somebody_adds_to_an_engine_of_a_cluster_goes(
    kubectl: Kubectl, runner: OperatorRunner
) -> None:
    runner.start()
    kubectl.apply(engine_cluster(replicas=1))
    wait_available(kubectl, 1)
    added = {"env": [{"name": "ADDED", "value": "1"}]}
    kubectl.patch("enginecore", "smollm-0", {"spec": {"runtime": added}})

    def back() -> bool:
        runtime = kubectl.get("enginecore", "smollm-0")["spec"]["runtime"]
        progressing = kubectl.condition("enginecluster", "smollm", "Progressing")
        return not runtime.get("env") and progressing == ("False", "Settled")

    eventually(back, "the engine has the cluster's spec", WAIT)
    wait_available(kubectl, 1)
    assert len(kubectl.events("Updated")) == 1


def test_killed_operator_goes_on_after_a_restart(kubectl: Kubectl, runner: OperatorRunner) -> None:
    replicas = 20
    first = runner.start()
    kubectl.apply(engine_cluster(replicas=replicas))
    eventually(lambda: len(kubectl.find_all("pods", ENGINES)) >= 2, "it began", WAIT)
    first.kill()
    runner.start()
    wait_available(kubectl, replicas)
    pods = kubectl.find_all("pods", ENGINES)
    names = sorted(pod["metadata"]["name"] for pod in pods)
    assert names == sorted(f"smollm-{rank}-1" for rank in range(replicas))
    assert {c["status"]["restarts"] for c in kubectl.find_all("enginecores")} == {0}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "ended"])
def test_another_process_takes_the_lead(
    kubectl: Kubectl, runner: OperatorRunner, number: signal.Signals
) -> None:
    first = runner.start()
    eventually(lambda: "this process leads" in first.text, deadline=WAIT)
    second = runner.start()
    kubectl.apply(engine_cluster(replicas=2))
    wait_available(kubectl, 2)
    assert "this process leads" not in second.text
    status = first.kill(number)
    assert status == (0 if number == signal.SIGTERM else -number)
    started = time.monotonic()
    eventually(lambda: "this process leads" in second.text, deadline=WAIT)
    # A released Lease is taken at the next look, an abandoned one after its duration.
    assert time.monotonic() - started < (6 if number == signal.SIGTERM else 16)
    kubectl.run("scale", "enginecluster/smollm", "--replicas=3")
    wait_available(kubectl, 3)
    assert {c["status"]["epoch"] for c in kubectl.find_all("enginecores")} == {1}
    lease = kubectl.get("lease", "enginecore-operator")["spec"]
    assert lease["holderIdentity"] == "operator-1"
    assert lease["leaseTransitions"] == 2


def test_deleted_cluster_leaves_nothing(kubectl: Kubectl, runner: OperatorRunner) -> None:
    runner.start()
    kubectl.apply(engine_cluster(replicas=2))
    wait_available(kubectl, 2)
    kubectl.run("delete", "enginecluster", "smollm", "--timeout=30s")
    kinds = "enginecores,pods,services,networkpolicies,deployments,replicasets,configmaps"

    def left() -> list[str]:
        found = [f"{o['kind']} {o['metadata']['name']}" for o in kubectl.find_all(kinds)]
        return [name for name in found if name != "ConfigMap kube-root-ca.crt"]

    eventually(lambda: not kubectl.find_all("enginecores,pods", ENGINES), "engines leave", WAIT)
    # The garbage collector looks for new kinds every 30 s only.
    eventually(lambda: not left(), "everything is gone", 90, interval=0.5)


def test_namespace_goes_without_an_operator(kubectl: Kubectl, runner: OperatorRunner) -> None:
    operator = runner.start()
    kubectl.apply(engine_cluster(replicas=2))
    wait_available(kubectl, 2)
    operator.kill()
    kubectl.run("delete", "namespace", kubectl.namespace, "--timeout=150s")
    kubectl.run("create", "namespace", kubectl.namespace)


@pytest.mark.timeout(600)
@pytest.mark.counted(short=20, full=300)
def test_idle_operator_writes_nothing_but_its_lease(
    kubectl: Kubectl, runner: OperatorRunner, counted: float
) -> None:
    runner.start(RESYNC_SECONDS="5")
    kubectl.apply(engine_cluster(replicas=2))
    wait_available(kubectl, 2)
    kinds = (
        "engineclusters,enginecores,pods,services,networkpolicies,deployments,configmaps,"
        "events.events.k8s.io"
    )

    def versions() -> dict[str, str]:
        return {
            f"{o['kind']} {o['metadata']['name']}": o["metadata"]["resourceVersion"]
            for o in kubectl.find_all(kinds)
        }

    # What others still had to write about the start settles first.
    seen = versions()

    def settled() -> bool:
        nonlocal seen
        before, seen = seen, versions()
        return before == seen

    eventually(settled, "the start settles", WAIT, interval=3.0)
    lease = kubectl.get("lease", "enginecore-operator")["metadata"]["resourceVersion"]

    def unchanged() -> None:
        assert versions() == seen

    throughout(counted, unchanged, interval=5.0)
    assert kubectl.get("lease", "enginecore-operator")["metadata"]["resourceVersion"] != lease


def test_lost_node(kubectl: Kubectl, runner: OperatorRunner) -> None:
    names = [f"{kubectl.namespace}-{letter}" for letter in "ab"]
    kubectl.apply(*(fake_node(name, pool=kubectl.namespace) for name in names))
    try:
        runner.start()
        selector = {"spec": {"nodeSelector": {"pool": kubectl.namespace}}}
        kubectl.apply(engine_cluster(replicas=1, podTemplate=selector))
        wait_available(kubectl, 1)
        node = kubectl.get("pod", "smollm-0-1")["spec"]["nodeName"]
        assert node in names
        kubectl.run("delete", "node", node)
        eventually(lambda: pods_of(kubectl, "smollm-0") == ["smollm-0-2"], "comes back", WAIT)
        wait_available(kubectl, 1)
        (other,) = set(names) - {node}
        assert kubectl.get("pod", "smollm-0-2")["spec"]["nodeName"] == other
    finally:
        kubectl.run("delete", "node", *names, "--ignore-not-found")


def test_fifty_engines(kubectl: Kubectl, runner: OperatorRunner) -> None:
    runner.start()
    kubectl.apply(engine_cluster(replicas=50))
    status = wait_available(kubectl, 50)
    assert len(set(status["clientAddresses"]["input_address"])) == 50
