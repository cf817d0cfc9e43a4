"""A cluster at rest: nothing writes to any of its objects (C24)."""

import time
from collections.abc import Callable

import pytest

from support.faces import Face
from support.installation import Installation
from support.pending import serves
from support.space import Engines, Space

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("installation", "lab"),
]

IDLE_SECONDS = 60.0
LOOK_SECONDS = 10.0


def versions(spaces: list[Space]) -> dict[str, str]:
    """Return the resource version of every object but Leases."""
    return {
        f"{space.name}/{name}": version
        for space in spaces
        for name, version in space.everything().items()
        if not name.startswith("Lease/")
    }


def test_nothing_changes_while_nothing_happens(
    lab: Engines, installation: Installation, make_face: Callable[..., Face]
) -> None:
    """A client is connected; it, too, must not make anybody write."""
    lab.wait_ready(2)
    face = make_face("async", lab)
    assert serves(face, 0)
    spaces = [lab.space, Space(lab.space.cluster, installation.namespace)]
    before = versions(spaces)
    assert any(name.startswith(f"{lab.space.name}/EngineCore/") for name in before)
    end = time.monotonic() + IDLE_SECONDS
    while time.monotonic() < end:
        # Time itself is what is waited for here: something that writes would do so in it.
        time.sleep(LOOK_SECONDS)
        now = versions(spaces)
        assert {name for name in now if before.get(name) != now[name]} == set()
        assert set(before) == set(now)
