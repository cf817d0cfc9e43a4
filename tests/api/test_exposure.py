"""Engines for clients outside the cluster, and on the node's network, by a real API server."""

from collections.abc import Iterator
from typing import Any

import pytest

from support.eventually import eventually
from support.operator_cluster import engine_cluster, engine_core, fake_node, refusing
from support.operator_process import Kubectl, OperatorRunner, fail_pod

pytestmark = [pytest.mark.api, pytest.mark.timeout(180)]

WAIT = 40.0
NODE_IP = "192.0.2.9"
SERVICE = "smollm-0-exposed"


@pytest.fixture
def own_node(kubectl: Kubectl) -> Iterator[str]:
    """A simulated node of this test's own, which has a name and no IP."""
    name = f"{kubectl.namespace}-own"
    kubectl.apply(fake_node(name, pool=kubectl.namespace))
    yield name
    kubectl.run("delete", "node", name)


def on_own_node(kubectl: Kubectl, **spec: Any) -> dict[str, Any]:
    """Return a podTemplate for that node."""
    tolerations = [{"operator": "Exists"}]
    place = {"nodeSelector": {"pool": kubectl.namespace}, "tolerations": tolerations}
    return {"spec": place | spec}


def exposed(kubectl: Kubectl, name: str = "smollm-0") -> tuple[str, str]:
    """Return status and reason of the condition."""
    if not kubectl.run("get", "enginecore", name, "--ignore-not-found"):
        return "", ""
    return kubectl.condition("enginecore", name, "Exposed")


def wait_exposed(kubectl: Kubectl, reason: str, name: str = "smollm-0") -> None:
    eventually(lambda: exposed(kubectl, name)[1] == reason, f"Exposed says {reason}", WAIT)


def cluster_addresses(kubectl: Kubectl) -> Any:
    return kubectl.get("enginecluster", "smollm")["status"].get("exposedAddresses")


def expose(kubectl: Kubectl, kind: str) -> None:
    kubectl.patch("enginecluster", "smollm", {"spec": {"transport": {"expose": kind}}})


def test_by_a_node_s_port_and_back(kubectl: Kubectl, runner: OperatorRunner, own_node: str) -> None:
    operator = runner.start()
    template = on_own_node(kubectl)
    kubectl.apply(engine_cluster(transport={"expose": "NodePort"}, podTemplate=template))
    wait_exposed(kubectl, "NoNodeAddress")
    addresses = [{"type": "Hostname", "address": own_node}]
    addresses.append({"type": "InternalIP", "address": NODE_IP})
    kubectl.patch("node", own_node, {"status": {"addresses": addresses}}, subresource="status")
    wait_exposed(kubectl, "AddressKnown")
    ports = {p["name"]: p["nodePort"] for p in kubectl.get("service", SERVICE)["spec"]["ports"]}
    inside = kubectl.get("enginecluster", "smollm")["status"]["clientAddresses"]
    expected = {
        "input_address": [f"tcp://{NODE_IP}:{ports['input']}"],
        "output_address": [f"tcp://{NODE_IP}:{ports['output']}"],
        "stats_update_address": "",
        "server_key": inside["server_key"],
    }
    eventually(lambda: cluster_addresses(kubectl) == expected, "the cluster shows it", WAIT)
    assert inside["input_address"][0].endswith(":5557")

    expose(kubectl, "None")
    eventually(lambda: cluster_addresses(kubectl) is None, "no address is shown", WAIT)
    gone = ("get", "service", SERVICE, "--ignore-not-found")
    eventually(lambda: not kubectl.run(*gone), "the Service is gone", WAIT)
    status = kubectl.get("enginecore", "smollm-0")["status"]
    assert (status["epoch"], status["exposedInputAddress"]) == (1, "")
    assert exposed(kubectl) == ("", "")
    assert "bug" not in operator.get("/metrics")


def test_by_a_load_balancer(kubectl: Kubectl, runner: OperatorRunner) -> None:
    runner.start()
    kubectl.apply(engine_cluster(replicas=1))
    eventually(lambda: exposed(kubectl) == ("", "") and kubectl.find_all("pods"), deadline=WAIT)
    expose(kubectl, "LoadBalancer")
    wait_exposed(kubectl, "LoadBalancerPending")
    kubectl.run("annotate", "service", SERVICE, "cloud.example/internal=true")

    def balance(*ingress: dict[str, str]) -> None:
        status = {"status": {"loadBalancer": {"ingress": list(ingress)}}}
        kubectl.patch("service", SERVICE, status, subresource="status")

    balance({"ip": "203.0.113.7"})
    wait_exposed(kubectl, "AddressKnown")
    status = kubectl.get("enginecore", "smollm-0")["status"]
    assert status["exposedInputAddress"] == "tcp://203.0.113.7:5557"
    assert status["exposedOutputAddress"] == "tcp://203.0.113.7:5558"
    balance({"hostname": "lb.example.com"})
    expected = ["tcp://lb.example.com:5557"]
    eventually(lambda: cluster_addresses(kubectl)["input_address"] == expected, deadline=WAIT)

    expose(kubectl, "NodePort")
    wait_exposed(kubectl, "NoNodeAddress")
    service = kubectl.get("service", SERVICE)
    assert service["spec"]["type"] == "NodePort"
    assert service["metadata"]["annotations"]["cloud.example/internal"] == "true"
    assert kubectl.get("enginecore", "smollm-0")["status"]["epoch"] == 1


def test_another_s_service_on_the_name(kubectl: Kubectl, runner: OperatorRunner) -> None:
    runner.start()
    meta = {"name": "solo-exposed"}
    spec = {"ports": [{"port": 80}]}
    kubectl.apply({"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec})
    kubectl.apply(engine_core(transport={"expose": "LoadBalancer"}))
    wait_exposed(kubectl, "NameTaken", "solo")
    notes = eventually(lambda: kubectl.events("NameTaken"), "told in an Event", WAIT)
    assert "solo-exposed" in notes[0]
    kubectl.run("delete", "service", "solo-exposed")
    wait_exposed(kubectl, "LoadBalancerPending", "solo")
    assert len(kubectl.events("NameTaken")) == 1
    kubectl.run("delete", "enginecore", "solo")
    gone = ("get", "service", "solo-exposed", "--ignore-not-found")
    eventually(lambda: not kubectl.run(*gone), "the Service goes with its engine", WAIT)


def test_a_service_that_lost_its_labels_is_taken_back(
    kubectl: Kubectl, runner: OperatorRunner
) -> None:
    runner.start()
    kubectl.apply(engine_core(transport={"expose": "LoadBalancer"}))
    wait_exposed(kubectl, "LoadBalancerPending", "solo")
    uid = kubectl.get("service", "solo-exposed")["metadata"]["uid"]
    label = "app.kubernetes.io/managed-by"
    kubectl.run("label", "--overwrite", "service", "solo-exposed", f"{label}=somebody")

    def back() -> bool:
        meta = kubectl.get("service", "solo-exposed")["metadata"]
        return bool(meta["labels"][label] == "enginecore-operator" and meta["uid"] == uid)

    eventually(back, "the label is ours again", WAIT)
    status = {"status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.7"}]}}}
    kubectl.patch("service", "solo-exposed", status, subresource="status")
    wait_exposed(kubectl, "AddressKnown", "solo")


PROBE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "probe"},
    "spec": {"ports": [{"port": 80}]},
}


def test_an_engine_whose_service_is_refused_serves_and_is_replaced(
    kubectl: Kubectl, runner: OperatorRunner, own_node: str
) -> None:
    with refusing(kubectl, PROBE, "services"):
        operator = runner.start()
        spec = {"transport": {"expose": "NodePort"}, "podTemplate": on_own_node(kubectl)}
        kubectl.apply(engine_core(restart={"initialSeconds": 0.1}, **spec))
        wait_exposed(kubectl, "RefusedByApi", "solo")
        eventually(
            lambda: kubectl.condition("enginecore", "solo", "Ready")[0] == "True", deadline=WAIT
        )
        fail_pod(kubectl, "solo-1", "out of luck")

        def replaced() -> bool:
            status = kubectl.get("enginecore", "solo")["status"]
            ready = kubectl.condition("enginecore", "solo", "Ready")[0] == "True"
            return status["epoch"] == 2 and ready and status["failure"]["epoch"] == 1

        eventually(replaced, "the next epoch serves", WAIT)
        assert exposed(kubectl, "solo") == ("False", "RefusedByApi")
        (note,) = kubectl.events("RefusedByApi")
        assert "no services here" in note
        assert "bug" not in operator.get("/metrics")


def test_on_the_node_s_network_equal_ports_keep_engines_apart(
    kubectl: Kubectl, runner: OperatorRunner, own_node: str
) -> None:
    runner.start()
    template = on_own_node(kubectl, hostNetwork=True)
    kubectl.apply(engine_cluster(replicas=2, podTemplate=template))

    def reasons() -> list[str]:
        if len(kubectl.find_all("enginecores")) < 2:
            return []
        names = ("smollm-0", "smollm-1")
        return sorted(kubectl.condition("enginecore", name, "Ready")[1] for name in names)

    eventually(lambda: reasons() == ["PodReady", "Unschedulable"], "one waits", WAIT)

    def degraded() -> dict[str, Any]:
        conditions = kubectl.get("enginecluster", "smollm")["status"]["conditions"]
        return next(c for c in conditions if c["type"] == "Degraded")

    # The cluster's status follows its engines'.
    eventually(lambda: degraded()["reason"] == "EngineStuck", "the cluster says so", WAIT)
    assert "free ports" in degraded()["message"]
    assert "spec.transport.inputPort" in degraded()["message"]

    ports = {"inputPort": 6557, "outputPort": 6558, "httpPort": 6080}
    solo = engine_core(transport=ports, podTemplate=template)
    kubectl.apply(solo)
    eventually(
        lambda: kubectl.condition("enginecore", "solo", "Ready")[0] == "True",
        "other ports have room on the same node",
        WAIT,
    )
    pod = kubectl.get("pod", "solo-1")
    assert pod["spec"]["dnsPolicy"] == "ClusterFirstWithHostNet"
    assert {p["hostPort"] for p in pod["spec"]["containers"][0]["ports"]} == set(ports.values())
