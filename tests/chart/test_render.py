"""What the chart renders: linted, accepted by a real API server, and locked down."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import yaml

from devcluster.handle import ClusterHandle
from enginecore_operator.api.rbac import CLUSTER_RULES, LEASE_RULES
from enginecore_operator.plan.network_policy import build_core_policy
from enginecore_operator.plan.observed import ObjectMeta
from enginecore_operator.settings import read_settings
from support.helm import CHART, NAMESPACE, POD_MONITOR_API, ROOT, SCENARIOS, Helm, find
from support.operator_objects import read_core_spec

pytestmark = [pytest.mark.chart, pytest.mark.usefixtures("chart_cluster")]

ALL_CRDS = {"engineclusters.enginecore.dev", "enginecores.enginecore.dev"}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_lint(helm: Helm, scenario: str) -> None:
    helm.run("lint", "--strict", str(CHART), f"--values={CHART}/ci/{scenario}-values.yaml")


@pytest.fixture(scope="module")
def namespaces(chart_cluster: ClusterHandle) -> None:
    for name in (NAMESPACE, "monitoring", "inference", "staging"):
        chart_cluster.kubectl("create", "namespace", name)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_api_server_accepts_every_object(
    helm: Helm, chart_cluster: ClusterHandle, namespaces: None, scenario: str
) -> None:
    objects = json.dumps(
        {"apiVersion": "v1", "kind": "List", "items": helm.render(scenario=scenario)}
    )
    chart_cluster.kubectl(
        "apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-", stdin=objects
    )


def test_api_server_accepts_the_rendered_manifests(
    chart_cluster: ClusterHandle, namespaces: None
) -> None:
    chart_cluster.kubectl(
        "apply", "--server-side", "--dry-run=server", "--validate=strict",
        "-f", str(ROOT / "manifests/install/install.yaml"),
    )  # fmt: skip


def containers(objects: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for item in objects:
        if item["kind"] in ("Deployment", "StatefulSet", "DaemonSet", "Job"):
            pod = item["spec"]["template"]["spec"]
            for container in pod.get("initContainers", []) + pod["containers"]:
                yield pod, container


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_containers_are_locked_down(helm: Helm, scenario: str) -> None:
    found = list(containers(helm.render(scenario=scenario)))
    assert found
    for pod, container in found:
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] >= 1000
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["enableServiceLinks"] is False
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["requests"]
        assert container["resources"]["limits"]["memory"]
        assert {"livenessProbe", "startupProbe"} <= container.keys()


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_roles_name_every_resource_and_verb(helm: Helm, scenario: str) -> None:
    roles = [r for r in helm.render(scenario=scenario) if r["kind"] in ("Role", "ClusterRole")]
    assert bool(roles) == (scenario != "bring-your-own")
    for rule in (rule for role in roles for rule in role["rules"]):
        words = {*rule.get("apiGroups", []), *rule["resources"], *rule["verbs"]}
        assert not {word for word in words if "*" in word}
        assert "nonResourceURLs" not in rule
        if "secrets" in rule["resources"]:
            assert rule["resources"] == ["secrets"]
            assert not {"list", "watch", "delete", "update"} & set(rule["verbs"])
        assert not {"escalate", "bind", "impersonate"} & set(rule["verbs"])


def granted(rules: Iterable[dict[str, Any]]) -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_the_roles_grant_what_the_operator_says_it_needs(helm: Helm) -> None:
    roles = helm.render("rbac.aggregate=false")
    cluster = [rule for role in roles if role["kind"] == "ClusterRole" for rule in role["rules"]]
    assert granted(cluster) == granted(CLUSTER_RULES)
    assert granted(find(roles, "Role")["rules"]) == granted(LEASE_RULES)


def test_the_operator_takes_the_settings_it_is_given(helm: Helm) -> None:
    (container,) = find(helm.render(scenario="production"), "Deployment")["spec"]["template"][
        "spec"
    ]["containers"]
    environment = {item["name"]: item.get("value", "pod's own") for item in container["env"]}
    settings = read_settings(environment, identity="x", namespace="")
    assert settings.namespace == "pod's own"
    assert settings.served_namespaces == ("inference", "staging")
    assert settings.torch_image == "registry.example.com:5000/enginecore/engine:0.1.0-cuda"
    assert settings.vllm_image == "registry.example.com:5000/vllm/vllm-openai:v0.31.0"
    assert settings.server_image == "registry.example.com:5000/enginecore/server:0.1.0"
    assert settings.coordinator_image == container["image"]
    assert settings.image_pull_policy == "Always"
    assert settings.log_level == "WARNING"
    assert settings.key_lag_seconds == 90
    assert settings.lease_name == "enginecore-operator"


def test_pod_monitors_only_where_the_kind_exists(helm: Helm) -> None:
    enabled = "monitoring.podMonitor.enabled=true"

    def monitors(*sets: str, options: tuple[str, ...] = ()) -> list[str]:
        objects = helm.render(*sets, options=options)
        return [o["metadata"]["name"] for o in objects if o["kind"] == "PodMonitor"]

    assert monitors() == []
    assert monitors(options=(POD_MONITOR_API,)) == []
    assert monitors(enabled) == []
    assert set(monitors(enabled, options=(POD_MONITOR_API,))) == {
        "enginecore-coordinator",
        "enginecore-engine",
        "enginecore-operator",
    }


def test_values_reach_the_operator(helm: Helm) -> None:
    objects = helm.render(scenario="production")
    deployment = find(objects, "Deployment")
    pod = deployment["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    assert deployment["spec"]["replicas"] == 3
    assert container["image"] == "registry.example.com:5000/enginecore/operator:0.1.0"
    assert container["imagePullPolicy"] == "Always"
    assert pod["metadata"]["labels"]["team"] == "inference"
    assert pod["metadata"]["annotations"] == {"example.com/owner": "inference"}
    assert pod["spec"]["imagePullSecrets"] == [{"name": "registry"}]
    assert pod["spec"]["priorityClassName"] == "system-cluster-critical"
    assert pod["spec"]["nodeSelector"] == {"kubernetes.io/os": "linux"}
    assert {"tolerations", "affinity"} <= pod["spec"].keys()
    assert find(objects, "ServiceAccount")["metadata"]["annotations"]
    dashboard = find(objects, "ConfigMap", "dashboard")
    assert dashboard["metadata"]["namespace"] == "monitoring"
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_pod_labels_cannot_break_the_selector(helm: Helm) -> None:
    deployment = find(
        helm.render("operator.podLabels.app\\.kubernetes\\.io/instance=x"), "Deployment"
    )
    selector = deployment["spec"]["selector"]["matchLabels"]
    assert selector.items() <= deployment["spec"]["template"]["metadata"]["labels"].items()


def test_network_policies_find_the_operators_pods(helm: Helm) -> None:
    """By a label that no value takes away, and that no selector of an earlier release has."""
    label = "enginecore.dev/component"
    taken = "operator.podLabels.enginecore\\.dev/component=x"
    for sets in ((), (taken,)):
        spec = find(helm.render(*sets), "Deployment")["spec"]
        owner = ObjectMeta(name="solo", namespace="lab")
        rule = build_core_policy(owner, read_core_spec(), NAMESPACE)["spec"]["ingress"][1]
        wanted = rule["from"][0]["podSelector"]["matchLabels"]
        assert wanted.items() <= spec["template"]["metadata"]["labels"].items()
        assert label not in spec["selector"]["matchLabels"]


def test_service_selects_the_operators_pods(helm: Helm) -> None:
    objects = helm.render()
    labels = find(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert find(objects, "Service")["spec"]["selector"].items() <= labels.items()


@pytest.mark.parametrize(("keep", "policy"), [("true", "keep"), ("false", None)])
def test_crds_are_those_of_the_operator(helm: Helm, keep: str, policy: str | None) -> None:
    rendered = {
        item["metadata"]["name"]: item
        for item in helm.render(f"crds.keep={keep}")
        if item["kind"] == "CustomResourceDefinition"
    }
    assert rendered.keys() == ALL_CRDS
    for name, crd in rendered.items():
        generated = yaml.safe_load((ROOT / f"manifests/crds/{name}.yaml").read_text())
        assert crd["spec"] == generated["spec"]
        assert crd["metadata"].get("annotations", {}).get("helm.sh/resource-policy") == policy
