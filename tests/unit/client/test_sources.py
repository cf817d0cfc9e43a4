"""Where addresses come from, with a clock that the test moves."""

import json
import os
from pathlib import Path

import pytest

from enginecore_client import (
    AddressError,
    ClientAddresses,
    FileSource,
    StaticSource,
    SyncMPClient,
)
from enginecore_client._addresses.sources import RankSource, source_of


def content(*hosts: str) -> dict[str, list[str]]:
    return {
        "input_address": [f"tcp://{host}:1" for host in hosts],
        "output_address": [f"tcp://{host}:2" for host in hosts],
    }


def hosts(addresses: ClientAddresses | None) -> list[str] | None:
    if addresses is None:
        return None
    return [address[len("tcp://") : -2] for address in addresses.input_address]


def host_of(address: str) -> str:
    return address[len("tcp://") : -2]


def test_static_addresses_come_once() -> None:
    source = StaticSource(ClientAddresses.from_dict(content("a")))
    assert [hosts(source.poll(now)) for now in (0.0, 1.0)] == [["a"], None]


def test_static_addresses_need_an_engine() -> None:
    with pytest.raises(AddressError, match="name no engine"):
        source_of(content())


@pytest.mark.parametrize(
    ("given", "ranks", "left"),
    [
        (["a", "b", "c"], [1], ["", "b", ""]),
        (["a", "b", "c"], [2, 0], ["a", "", "c"]),
        (["a", "b", "c"], [0, 1, 2, 3], ["a", "b", "c"]),
        (["b"], [1], ["b"]),
    ],
)
def test_some_ranks_alone(given: list[str], ranks: list[int], left: list[str]) -> None:
    source = RankSource(source_of(content(*given)), ranks)
    found = source.poll(0.0)
    assert found is not None
    assert [host_of(address) for address in found.input_address] == left
    assert source.poll(1.0) is None
    assert source.describe().startswith("client_addresses, rank ")


def test_ranks_that_no_address_stands_for() -> None:
    with pytest.raises(AddressError, match=r"no engine of rank 5, 6; index i is rank i"):
        RankSource(source_of(content("a", "b")), [5, 6])


def test_ranks_of_a_file_that_changes(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(content("a", "b")))
    source = RankSource(FileSource(path), [1])
    first = source.poll(0.0)
    path.write_text(json.dumps(content("a", "c")))
    second = source.poll(5.0)
    assert first is not None
    assert second is not None
    assert [e.input_address for e in (*first.endpoints, *second.endpoints)] == [
        "tcp://b:1",
        "tcp://c:1",
    ]
    assert {e.index for e in (*first.endpoints, *second.endpoints)} == {1}
    path.write_text(json.dumps(content("a")))
    third = source.poll(10.0)
    assert third is not None
    assert third.endpoints == ()  # that one is rank 0's


def test_file_is_read_when_it_changes_and_at_most_once_a_second(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(content("a")))
    source = FileSource(path)
    assert hosts(source.poll(0.0)) == ["a"]
    path.write_text(json.dumps(content("a", "b")))
    assert source.poll(0.5) is None
    assert hosts(source.poll(1.0)) == ["a", "b"]
    assert source.poll(5.0) is None


def test_file_of_the_same_size_replaced_by_rename(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(content("a")))
    source = FileSource(path)
    source.poll(0.0)
    other = tmp_path / "next"
    other.write_text(json.dumps(content("b")))
    os.utime(other, ns=(path.stat().st_mtime_ns,) * 2)
    other.rename(path)
    assert hosts(source.poll(1.0)) == ["b"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [("{", "not a JSON object"), ("{}", "is empty"), (None, "No such file"), ("[]", "not a JSON")],
)
def test_a_broken_file_changes_nothing_and_is_read_once_mended(
    tmp_path: Path, text: str | None, problem: str
) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(content("a")))
    source = FileSource(path)
    source.poll(0.0)
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
    assert source.poll(1.0) is None
    assert problem in source.problem
    assert problem in source.describe()
    path.write_text(json.dumps(content("c")))
    assert hosts(source.poll(2.0)) == ["c"]
    assert source.problem == ""


def test_what_stands_for_a_source(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(content("a")))
    typed = ClientAddresses.from_dict(content("a"))
    own = StaticSource(typed)
    for given in (content("a"), typed, str(path), path, own):
        assert hosts(source_of(given).poll(0.0)) == ["a"]


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        (ClientAddresses(("tcp://10.0.0.1:1",), ()), "1 entries and output_address 0"),
        (ClientAddresses(("10.0.0.1:1",), ("tcp://10.0.0.1:2",)), "must be tcp://host:port"),
        (ClientAddresses((), (), mode="bind"), "has 0 entries; in mode 'bind'"),
        (ClientAddresses(5, ("tcp://10.0.0.1:2",)), "must be a string or a list"),  # type: ignore[arg-type]
    ],
)
def test_addresses_made_by_hand_are_checked_too(typed: ClientAddresses, text: str) -> None:
    for use in (source_of, SyncMPClient):
        with pytest.raises(AddressError, match=text):
            use(typed)


def test_one_address_made_by_hand_is_no_list_of_characters() -> None:
    typed = ClientAddresses("tcp://10.0.0.1:1", "tcp://10.0.0.1:2")  # type: ignore[arg-type]
    assert hosts(source_of(typed).poll(0.0)) == ["10.0.0.1"]


@pytest.mark.parametrize("given", [None, 5, [content("a")]])
def test_what_does_not(given) -> None:
    with pytest.raises(AddressError, match="is neither a dict, the path of a JSON file"):
        source_of(given)
