"""Fixtures of the api tier: a cluster with our CRDs and a simulated node, operators in it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster.handle import ClusterHandle
from support.operator_cluster import fake_node
from support.operator_process import CRDS, Kubectl, OperatorRunner, operators


@pytest.fixture(scope="session")
def prepared_cluster(kwok_cluster: ClusterHandle) -> ClusterHandle:
    """A cluster with our CRDs, applied client-side, and one simulated node."""
    kwok_cluster.kubectl("apply", "-f", str(CRDS))
    kwok_cluster.kubectl(
        *("wait", "--for=condition=Established", "--timeout=20s", "-f", str(CRDS)),
    )
    Kubectl(kwok_cluster, "default").apply(fake_node("fake-0"))
    return kwok_cluster


@pytest.fixture
def kubectl(prepared_cluster: ClusterHandle, kwok_namespace: str) -> Kubectl:
    """kubectl in a namespace of this test's own."""
    return Kubectl(prepared_cluster, kwok_namespace)


@pytest.fixture
def runner(kubectl: Kubectl, tmp_path: Path) -> Iterator[OperatorRunner]:
    """Starts operators for the test's namespace."""
    with operators(kubectl, tmp_path) as found:
        yield found
