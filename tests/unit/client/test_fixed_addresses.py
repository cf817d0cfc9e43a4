"""What is said, and no longer promised, where engines left addresses that do not change."""

from typing import Any

import pytest

from enginecore_client import EngineDeadError, EngineNotReadyError, FileSource, StaticSource
from enginecore_client._addresses.addresses import ClientAddresses
from enginecore_client._addresses.sources import FIXED, RankSource, advice_of
from enginecore_client._core.fleet import GIVE_UP_SECONDS
from support.core_steps import add
from support.memory_link import MemoryLink

ADVICE = "look elsewhere"
LONG = GIVE_UP_SECONDS + 1.0


def both(address: str) -> dict[str, Any]:
    return {"input_address": f"{address}:5557", "output_address": f"{address}:5558"}


@pytest.mark.parametrize(
    ("addresses", "advice"),
    [
        (both("tcp://10.244.0.7"), FIXED),
        (both("tcp://[fd00::7]"), FIXED),
        (both("tcp://smollm2-0.engines"), ""),
        ({"input_address": "ipc:///run/in", "output_address": "ipc:///run/out"}, ""),
        (both("tcp://10.244.0.7") | {"mode": "bind"}, ""),
    ],
)
def test_an_ip_address_is_fixed(addresses: dict[str, Any], advice: str) -> None:
    source = StaticSource(ClientAddresses.from_dict(addresses))
    assert advice_of(source) == advice
    assert advice_of(RankSource(source, [0])) == advice


def test_a_file_is_followed(tmp_path) -> None:
    path = tmp_path / "addresses.json"
    path.write_text('{"input_address": "tcp://10.0.0.7:1", "output_address": "tcp://10.0.0.7:2"}')
    assert advice_of(FileSource(path)) == ""


def gone(link: MemoryLink, name: str) -> None:
    """Have an engine leave its address for good."""
    link.answers = False
    link.down(link.pod(name))
    link.wait(1.0)
    link.down(link.pod(name))


def refused(link: MemoryLink, **options: Any) -> EngineNotReadyError | EngineDeadError:
    with pytest.raises((EngineDeadError, EngineNotReadyError)) as caught:
        add(link, **options)
    return caught.value


def test_the_error_names_the_remedy_and_stops_promising() -> None:
    link = MemoryLink("a", advice=ADVICE)
    gone(link, "a")
    early = refused(link)
    assert isinstance(early, EngineDeadError)
    assert str(early).endswith(f"nobody answers there, for 0 s; {ADVICE}")
    assert early.retryable
    link.wait(LONG)
    late = refused(link)
    assert not late.retryable
    assert not refused(link, retry=True).retryable
    link.up(link.pod("a"))
    link.answer(link.pod("a"))
    add(link)


def test_a_request_that_waits_for_another_try_ends_with_the_remedy() -> None:
    link = MemoryLink("a", advice=ADVICE)
    gone(link, "a")
    add(link, retry=True)
    assert link.core.unfinished == 1
    link.wait(LONG)
    assert link.core.unfinished == 0


def test_addresses_that_may_change_are_waited_for() -> None:
    link = MemoryLink("a")
    gone(link, "a")
    add(link, retry=True)
    link.wait(LONG)
    error = refused(link)
    assert error.retryable
    assert str(error).endswith("s")
    assert link.core.unfinished == 1


def test_somebody_who_answers_is_waited_for() -> None:
    link = MemoryLink("a", "b", ready=False, advice=ADVICE)
    link.down(link.pod("a"))
    link.wait(LONG)
    error = refused(link)
    assert ADVICE in str(error)
    assert error.retryable
    link.up(link.pod("a"))
    assert ADVICE not in str(refused(link))


@pytest.mark.parametrize(("enough", "ready"), [(None, False), (1, True), (2, False)])
def test_enough_engines_are_ready(enough: int | None, ready: bool) -> None:
    link = MemoryLink("a", "b", ready=False)
    assert not link.core.all_ready(enough)
    link.answer(link.pod("a"))
    assert link.core.all_ready(enough) is ready
    link.answer(link.pod("b"))
    assert link.core.all_ready(enough)
