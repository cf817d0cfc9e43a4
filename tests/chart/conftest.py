"""The real helm, and a real API server that judges what it renders."""

import secrets
from collections.abc import Iterator

import pytest

from devcluster import binaries
from devcluster.handle import ClusterHandle, held
from devcluster.locations import Locations
from support.helm import Helm


@pytest.fixture(scope="session")
def helm() -> Helm:
    """Helm that renders; it talks to no cluster."""
    return Helm(binaries.build(["helm"], Locations.from_environment().cache, print)["helm"])


@pytest.fixture(scope="session")
def chart_cluster() -> Iterator[ClusterHandle]:
    """An API server of these tests' own: they install and remove the CRDs."""
    name = f"chart-{secrets.token_hex(4)}"
    with held(name, ["--tier", "api", "--controllers"], Locations.from_environment()) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def cluster_helm(helm: Helm, chart_cluster: ClusterHandle) -> Helm:
    """Helm that installs on that API server."""
    return Helm(helm.program, chart_cluster.kubeconfig)
