"""A cluster at rest: nothing writes to any of its objects (C24)."""

from collections.abc import Callable

import pytest

from support.eventually import throughout
from support.faces import Face
from support.installation import Installation
from support.pending import serves
from support.space import Engines, Space

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("installation", "lab"),
]

LOOK_SECONDS = 10.0


def versions(spaces: list[Space]) -> dict[str, str]:
    """Return the resource version of every object but Leases."""
    return {
        f"{space.name}/{name}": version
        for space in spaces
        for name, version in space.everything().items()
        if not name.startswith("Lease/")
    }


@pytest.mark.counted(short=60, full=300)
def test_nothing_changes_while_nothing_happens(
    lab: Engines,
    installation: Installation,
    make_face: Callable[..., Face],
    counted: float,
    record_property: Callable[[str, object], None],
) -> None:
    """A client is connected; it, too, must not make anybody write."""
    lab.wait_ready(2)
    face = make_face("async", lab)
    assert serves(face, 0)
    spaces = [lab.space, Space(lab.space.cluster, installation.namespace)]
    before = versions(spaces)
    assert any(name.startswith(f"{lab.space.name}/EngineCore/") for name in before)
    looks = 0

    def unchanged() -> None:
        nonlocal looks
        now = versions(spaces)
        assert {name for name in now if before.get(name) != now[name]} == set()
        assert set(before) == set(now)
        looks += 1

    throughout(counted, unchanged, LOOK_SECONDS)
    record_property("observed", f"{len(before)} objects, {looks} looks in {counted:.0f} s")
