"""Where files go, and which names are taken for a run."""

from pathlib import Path

import pytest

from devcluster.errors import DevclusterError
from devcluster.locations import NODE_ROOT, Locations

UNIX_PATH_BYTES = 107
LONGEST_SOCKET = "kubelet/pod-resources/4294967295"


@pytest.mark.parametrize(
    ("environ", "cache", "state"),
    [
        ({"HOME": "/home/a"}, "/home/a/.cache", "/home/a/.local/state"),
        ({"HOME": "/home/a", "XDG_CACHE_HOME": "/c"}, "/c", "/home/a/.local/state"),
        ({"HOME": "/home/a", "XDG_STATE_HOME": "/s"}, "/home/a/.cache", "/s"),
        ({"HOME": "/home/a", "XDG_STATE_HOME": ""}, "/home/a/.cache", "/home/a/.local/state"),
    ],
)
def test_environment(environ: dict[str, str], cache: str, state: str) -> None:
    found = Locations.from_environment(environ)
    suffix = "enginecore/devcluster"
    assert (found.cache, found.state) == (Path(cache, suffix), Path(state, suffix))


@pytest.mark.parametrize("name", ["a", "node", "api-1a2b", "x" * 40])
def test_good_names_keep_sockets_short(name: str) -> None:
    run = Locations.from_environment({"HOME": "/" + "h" * 200}).run(name)
    assert run.name == name
    assert run.node.parent == NODE_ROOT
    assert len(str(run.node / LONGEST_SOCKET)) <= UNIX_PATH_BYTES


@pytest.mark.parametrize("name", ["", "..", "a/b", "Node", "-a", "a-", "a.b", "x" * 41])
def test_bad_names_are_refused(name: str) -> None:
    with pytest.raises(DevclusterError, match="is not valid: use at most 40"):
        Locations.from_environment({}).run(name)
