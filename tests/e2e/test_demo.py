"""The demo as a user runs it: from nothing to tokens, and back to nothing."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster import cluster, state
from devcluster.locations import Locations
from support.demo import Demo, assert_shows_tokens
from support.host_traces import HostTraces

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.model,
    pytest.mark.exclusive_node,
    pytest.mark.timeout(600),
]

RUN_NAME = "demo"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Without a cluster of the user's, and with a state directory of its own."""
    found = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"}
    return found | {"XDG_STATE_HOME": str(tmp_path)}


@pytest.fixture
def locations(environ: dict[str, str]) -> Iterator[Locations]:
    """The same directories; a demo that failed half-way goes down."""
    found = Locations.from_environment(environ)
    yield found
    cluster.down(RUN_NAME, found, print)


def test_up_shows_tokens_and_stays_up_down_leaves_nothing(
    environ: dict[str, str], locations: Locations
) -> None:
    demo = Demo(environ)
    before = HostTraces.of(locations.run(RUN_NAME))
    assert_shows_tokens(demo.up())
    assert f"{RUN_NAME}: tier node, {state.Verdict.RUNNING}, " in demo.clusters()

    demo.down()
    assert demo.clusters() == ""
    assert HostTraces.of(locations.run(RUN_NAME)) == before
