"""What is deleted is gone, in any order, and nothing waits for somebody who is not there (C23)."""

from typing import Any

import pytest

from devcluster.handle import ClusterHandle
from support.eventually import eventually
from support.installation import Installation
from support.space import Engines, Space

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("installation"),
]


def test_deleted_cluster_leaves_nothing(space: Space, tiny_spec: dict[str, Any]) -> None:
    eventually(lambda: "ServiceAccount/default" in space.everything(), "a new namespace", 20, 0.5)
    eventually(lambda: "ConfigMap/kube-root-ca.crt" in space.everything(), "its CA", 20, 0.5)
    before = set(space.everything())
    engines = Engines(space, "brief")
    engines.apply(replicas=1, **tiny_spec)
    engines.wait_ready(1)
    made = {name.partition("/")[0] for name in set(space.everything()) - before}
    wanted = {"Pod", "Service", "ConfigMap", "Deployment", "Secret", "EngineCore", "EngineCluster"}
    assert wanted <= made
    space.kubectl.run("delete", "enginecluster", "brief", "--timeout=150s")
    eventually(lambda: set(space.everything()) == before, "nothing is left", 60, 1)


def test_namespace_goes_without_the_operator(
    node_cluster: ClusterHandle,
    installation: Installation,
    space: Space,
    tiny_spec: dict[str, Any],
) -> None:
    engines = Engines(space, "orphan")
    engines.apply(replicas=1, **tiny_spec)
    eventually(lambda: len(engines.cores()) == 1, "the EngineCore", 20, 0.2)
    eventually(lambda: engines.pod(0)["status"]["phase"] == "Running", "its pod runs", 60, 0.2)
    installation.scale(0)
    try:
        node_cluster.kubectl("delete", "namespace", space.name, "--timeout=150s")
    finally:
        installation.scale(1)
