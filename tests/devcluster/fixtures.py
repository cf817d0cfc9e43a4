"""pytest fixtures: real clusters for a session, a namespace for a test.

Load them with ``pytest_plugins = ["devcluster.fixtures"]`` in tests/conftest.py.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator

import pytest

from devcluster.handle import ClusterHandle, attach, held
from devcluster.locations import Locations

EXCLUSIVE = "exclusive_node"
REUSE_VARIABLE = "ENGINECORE_DEVCLUSTER_REUSE"


def pytest_configure(config: pytest.Config) -> None:
    """Declares this module's marker."""
    config.addinivalue_line(
        "markers",
        f"{EXCLUSIVE}: brings up a node itself; runs before the session's node is up",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Puts the tests that need this machine's node for themselves in front.

    A reused run keeps the node all the time, so they are left out then.
    """
    exclusive = [item for item in items if item.get_closest_marker(EXCLUSIVE)]
    others = [item for item in items if not item.get_closest_marker(EXCLUSIVE)]
    if exclusive and os.environ.get(REUSE_VARIABLE):
        config.hook.pytest_deselected(items=exclusive)
        exclusive = []
    items[:] = exclusive + others


@pytest.fixture(scope="session")
def devcluster_locations() -> Locations:
    """Where the dev cluster keeps its files."""
    return Locations.from_environment()


@pytest.fixture(scope="session")
def api_cluster(devcluster_locations: Locations) -> Iterator[ClusterHandle]:
    """An API server with controller manager and scheduler, but no node."""
    options = ["--tier", "api", "--controllers"]
    with held(_unique("api"), options, devcluster_locations) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def kwok_cluster(devcluster_locations: Locations) -> Iterator[ClusterHandle]:
    """The same with kwok: nodes annotated ``kwok.x-k8s.io/node=fake`` come alive."""
    with held(_unique("kwok"), ["--tier", "api", "--kwok"], devcluster_locations) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def node_cluster(devcluster_locations: Locations) -> Iterator[ClusterHandle]:
    """A whole cluster with one real node, on which the scheduler counts 8 GPUs.

    With ENGINECORE_DEVCLUSTER_REUSE=NAME the tests use a run that is up
    already, and leave it up.
    """
    reused = os.environ.get(REUSE_VARIABLE)
    if reused:
        yield attach(reused, devcluster_locations)
        return
    with held(_unique("node"), ["--tier", "node", "--gpus", "8"], devcluster_locations) as cluster:
        yield cluster


@pytest.fixture
def api_namespace(api_cluster: ClusterHandle) -> Iterator[str]:
    """A namespace of the API cluster for one test."""
    yield from _namespace(api_cluster)


@pytest.fixture
def kwok_namespace(kwok_cluster: ClusterHandle) -> Iterator[str]:
    """A namespace of the kwok cluster for one test."""
    yield from _namespace(kwok_cluster)


def _namespace(cluster: ClusterHandle) -> Iterator[str]:
    name = _unique("test")
    cluster.kubectl("create", "namespace", name)
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")


def _unique(prefix: str) -> str:
    return f"{prefix}-{secrets.token_hex(4)}"
