"""A release's life on a real API server: install, rights, upgrade, uninstall, install again."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from devcluster.handle import ClusterHandle
from support.eventually import eventually
from support.helm import CHART, ROOT, Helm
from support.operator_cluster import engine_cluster
from support.operator_process import Kubectl, account_kubeconfig, operators

pytestmark = [
    pytest.mark.chart,
    pytest.mark.usefixtures("chart_cluster"),
    pytest.mark.timeout(180),
]

NAMESPACE = "release-test"
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:enginecore-operator"
CLUSTER_LABEL = "enginecore.dev/cluster=granted"
PREVIOUS = sorted((ROOT / "tests/golden/charts").glob("enginecore-*.tgz"))


@pytest.fixture(scope="module")
def release(cluster_helm: Helm, chart_cluster: ClusterHandle) -> Iterator[None]:
    cluster_helm.run(
        "install", "enginecore", str(CHART), f"--namespace={NAMESPACE}", "--create-namespace"
    )
    chart_cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
    yield
    cluster_helm.run("uninstall", "enginecore", f"--namespace={NAMESPACE}", "--ignore-not-found")
    chart_cluster.kubectl("delete", "crd", "--all", "--wait")
    chart_cluster.kubectl("delete", "namespace", NAMESPACE, "--wait")


RIGHTS = {
    "list clusters": ("list", "engineclusters.enginecore.dev", "default", True),
    "watch clusters": ("watch", "engineclusters.enginecore.dev", "default", True),
    "write a cluster's status": ("patch", "engineclusters.enginecore.dev/status", "default", True),
    "change a cluster": ("patch", "engineclusters.enginecore.dev", "default", False),
    "scale a cluster": ("patch", "engineclusters.enginecore.dev/scale", "default", False),
    "delete a cluster": ("delete", "engineclusters.enginecore.dev", "default", False),
    "create a core": ("create", "enginecores.enginecore.dev", "default", True),
    "create a pod": ("create", "pods", "default", True),
    "run in a pod": ("create", "pods/exec", "default", False),
    "read a secret by name": ("get", "secrets", "default", True),
    "list secrets": ("list", "secrets", "default", False),
    "watch secrets": ("watch", "secrets", "default", False),
    "delete secrets": ("delete", "secrets", "default", False),
    "change a node": ("patch", "nodes", "", False),
    "change roles": ("create", "clusterroles", "", False),
    "create its lease": ("create", "leases.coordination.k8s.io", NAMESPACE, True),
    "lease elsewhere": ("create", "leases.coordination.k8s.io", "default", False),
    "change CRDs": ("patch", "customresourcedefinitions", "", False),
}


@pytest.mark.parametrize(("verb", "resource", "namespace", "allowed"), RIGHTS.values(), ids=RIGHTS)
def test_the_operators_rights(
    chart_cluster: ClusterHandle,
    release: None,
    verb: str,
    resource: str,
    namespace: str,
    allowed: bool,
) -> None:
    kind, _, subresource = resource.partition("/")
    scope = [f"--namespace={namespace}"] if namespace else []
    scope += [f"--subresource={subresource}"] if subresource else []
    done = chart_cluster.kubectl(
        "auth", "can-i", verb, kind, f"--as={ACCOUNT}", *scope, check=False
    )
    assert done.stdout.strip() == ("yes" if allowed else "no"), done.stderr


USER_RIGHTS = {
    "view reads": ("view", "get", True),
    "view does not write": ("view", "create", False),
    "edit writes": ("edit", "create", True),
    "admin writes": ("admin", "delete", True),
}


@pytest.mark.parametrize(("role", "verb", "allowed"), USER_RIGHTS.values(), ids=USER_RIGHTS)
def test_the_users_rights(
    chart_cluster: ClusterHandle, release: None, role: str, verb: str, allowed: bool
) -> None:
    user = f"{role}-{verb}"
    chart_cluster.kubectl(
        "create", "rolebinding", user, f"--clusterrole={role}", f"--user={user}",
        f"--namespace={NAMESPACE}",
    )  # fmt: skip
    done = chart_cluster.kubectl(
        "auth", "can-i", verb, "engineclusters.enginecore.dev", f"--as={user}",
        f"--namespace={NAMESPACE}", check=False,
    )  # fmt: skip
    assert done.stdout.strip() == ("yes" if allowed else "no")


CLUSTER = """
apiVersion: enginecore.dev/v1alpha1
kind: EngineCluster
metadata: {name: kept, namespace: default}
spec: {replicas: 0, model: {name: m}}
"""


def test_with_namespaces_it_has_rights_in_no_other(
    chart_cluster: ClusterHandle, cluster_helm: Helm, release: None
) -> None:
    chart_cluster.kubectl("create", "namespace", "served")
    upgrade = ("upgrade", "enginecore", str(CHART), f"--namespace={NAMESPACE}", "--reset-values")
    cluster_helm.run(*upgrade, "--set=operator.namespaces={served}")
    may = {
        namespace: chart_cluster.kubectl(
            "auth", "can-i", "create", "pods", f"--as={ACCOUNT}", f"--namespace={namespace}",
            check=False,
        ).stdout.strip()
        for namespace in ("served", "default", NAMESPACE)
    }  # fmt: skip
    cluster_helm.run(*upgrade)
    assert may == {"served": "yes", "default": "no", NAMESPACE: "no"}


@pytest.mark.parametrize("served", ["", "default"], ids=["everywhere", "one namespace"])
def test_an_operator_works_with_the_rights_the_chart_grants(
    chart_cluster: ClusterHandle, cluster_helm: Helm, release: None, tmp_path: Path, served: str
) -> None:
    upgrade = ("upgrade", "enginecore", str(CHART), f"--namespace={NAMESPACE}", "--reset-values")
    cluster_helm.run(*upgrade, *([f"--set=operator.namespaces={{{served}}}"] if served else []))
    own, users = Kubectl(chart_cluster, NAMESPACE), Kubectl(chart_cluster, "default")
    kubeconfig = account_kubeconfig(own, "enginecore-operator", tmp_path)
    users.apply(engine_cluster("granted", replicas=2))

    def created() -> bool:
        assert len(users.find_all("enginecores")) == 2
        assert len(users.find_all("pods", "enginecore.dev/component=engine")) == 2
        assert users.find_all("deployments", CLUSTER_LABEL)
        assert users.find_all("configmaps", CLUSTER_LABEL)
        return bool(users.events("Created"))

    with operators(own, tmp_path, kubeconfig) as runner:
        operator = runner.start(NAMESPACES=served)
        eventually(created, "the cluster's children", deadline=30, interval=0.3)
        assert "orbidden" not in operator.text
    users.run("delete", "enginecluster", "granted", "--cascade=foreground", "--timeout=150s")
    cluster_helm.run(*upgrade)


def test_clusters_outlive_the_release(
    chart_cluster: ClusterHandle, cluster_helm: Helm, release: None
) -> None:
    chart_cluster.kubectl("apply", "-f", "-", stdin=CLUSTER)
    arguments = ("enginecore", f"--namespace={NAMESPACE}")
    cluster_helm.run("uninstall", *arguments)
    kept = chart_cluster.kubectl("get", "engineclusters", "-A", "-o", "name").stdout
    assert "kept" in kept
    cluster_helm.run("install", "enginecore", str(CHART), f"--namespace={NAMESPACE}")
    chart_cluster.kubectl("get", "enginecluster", "kept", "--namespace=default")
    chart_cluster.kubectl("delete", "enginecluster", "kept", "--namespace=default")


def without_rollout(directory: Path) -> Path:
    """This chart as an older one: version 0.0.1, whose EngineCluster has no spec.rollout yet."""
    chart = directory / "enginecore"
    shutil.copytree(CHART, chart)
    about = yaml.safe_load((chart / "Chart.yaml").read_text())
    (chart / "Chart.yaml").write_text(yaml.safe_dump(about | {"version": "0.0.1"}))
    path = chart / "files/crds/engineclusters.enginecore.dev.yaml"
    crd = yaml.safe_load(path.read_text())
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    del schema["properties"]["spec"]["properties"]["rollout"]
    path.write_text(yaml.safe_dump(crd))
    return chart


PAUSED = CLUSTER.replace("replicas: 0", "replicas: 0, rollout: {paused: true}")


def test_an_upgrade_brings_new_fields(
    chart_cluster: ClusterHandle, cluster_helm: Helm, release: None, tmp_path: Path
) -> None:
    arguments = ("enginecore", f"--namespace={NAMESPACE}")
    apply = ("apply", "--validate=strict", "-f", "-")
    cluster_helm.run("uninstall", *arguments)
    chart_cluster.kubectl("delete", "crd", "--all", "--wait")
    cluster_helm.run("install", arguments[0], str(without_rollout(tmp_path)), arguments[1])
    chart_cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
    eventually_applied(chart_cluster, CLUSTER)
    refused = chart_cluster.kubectl(*apply, stdin=PAUSED, check=False)
    assert 'unknown field "spec.rollout"' in refused.stderr
    cluster_helm.run("upgrade", arguments[0], str(CHART), arguments[1])
    eventually_applied(chart_cluster, PAUSED)
    paused = chart_cluster.kubectl(
        "get",
        "enginecluster",
        "kept",
        "--namespace=default",
        "-o",
        "jsonpath={.spec.rollout.paused}",
    )
    assert paused.stdout == "true"


def test_there_is_a_released_chart_to_upgrade_from() -> None:
    assert PREVIOUS, "pytest skips test_an_upgrade_from_a_released_chart without one"


@pytest.mark.parametrize("previous", PREVIOUS, ids=lambda path: path.stem)
def test_an_upgrade_from_a_released_chart(
    chart_cluster: ClusterHandle, cluster_helm: Helm, release: None, previous: Path
) -> None:
    arguments = ("enginecore", f"--namespace={NAMESPACE}")
    cluster_helm.run("uninstall", *arguments)
    chart_cluster.kubectl("delete", "crd", "--all", "--wait")
    cluster_helm.run("install", arguments[0], str(previous), arguments[1])
    cluster_helm.run("upgrade", arguments[0], str(CHART), arguments[1])
    wanted = yaml.safe_load((CHART / "Chart.yaml").read_text())["version"]
    labels = chart_cluster.kubectl("get", "crd", "-o", "jsonpath={..helm\\.sh/chart}").stdout
    assert set(labels.split()) == {f"enginecore-{wanted}"}


def eventually_applied(cluster: ClusterHandle, manifest: str) -> None:
    """Apply as soon as the API server serves the definition it has just been given."""

    def applied() -> bool:
        done = cluster.kubectl("apply", "--validate=strict", "-f", "-", stdin=manifest, check=False)
        return done.returncode == 0

    eventually(applied, "the manifest is applied", deadline=30)
