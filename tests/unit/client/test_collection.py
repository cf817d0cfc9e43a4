"""The garbage collector rests while a burst is read, and is as it was afterwards."""

import gc
from collections.abc import Callable, Iterator

import pytest

from enginecore_client._shell.collection import NoCollection


@pytest.fixture(params=[True, False], ids=["on", "off"])
def collects(request: pytest.FixtureRequest) -> Iterator[bool]:
    """The collector on, or off, as a process may have it."""
    before = gc.isenabled()
    (gc.enable if request.param else gc.disable)()
    yield request.param
    (gc.enable if before else gc.disable)()


def plainly() -> None:
    with NoCollection():
        assert not gc.isenabled()


def nested() -> None:
    with NoCollection():
        plainly()
        assert not gc.isenabled()


def failing() -> None:
    with pytest.raises(LookupError, match="broke"), NoCollection():
        raise LookupError("broke")


@pytest.mark.parametrize("block", [plainly, nested, failing])
def test_the_collector_is_as_it_was(collects: bool, block: Callable[[], None]) -> None:
    block()
    assert gc.isenabled() is collects
