"""client_addresses: what is taken, and what each mistake is told."""

import json
from pathlib import Path

import pytest

from enginecore_client import AddressError, ClientAddresses
from enginecore_client._addresses.addresses import Endpoint, host_name, with_host
from enginecore_client._sockets.resources import resolve

GOOD = {"input_address": "tcp://10.0.0.1:5557", "output_address": "tcp://10.0.0.1:5558"}


def changed(**fields: object) -> dict[str, object]:
    return {**GOOD, **fields}


TAKEN = [
    (GOOD, [("tcp://10.0.0.1:5557", "tcp://10.0.0.1:5558")]),
    (
        {"input_address": ["tcp://a:1", "tcp://b:2"], "output_address": ["tcp://a:3", "tcp://b:4"]},
        [("tcp://a:1", "tcp://a:3"), ("tcp://b:2", "tcp://b:4")],
    ),
    (
        {"input_address": ["", "tcp://b:2"], "output_address": ["", "tcp://b:4"]},
        [("tcp://b:2", "tcp://b:4")],
    ),
    (
        changed(input_address="tcp://[fd00::1]:1", output_address="tcp://[fd00::1]:2"),
        [("tcp://[fd00::1]:1", "tcp://[fd00::1]:2")],
    ),
    (
        changed(input_address="ipc:///run/i", output_address="ipc:///run/o", mode="connect"),
        [("ipc:///run/i", "ipc:///run/o")],
    ),
    ({"input_address": [], "output_address": []}, []),
]


@pytest.mark.parametrize(("source", "pairs"), TAKEN)
def test_taken(source, pairs) -> None:
    assert [e.key for e in ClientAddresses.from_dict(source).endpoints] == pairs


def test_index_survives_a_hole() -> None:
    source = {"input_address": ["", "tcp://b:2"], "output_address": ["", "tcp://b:4"]}
    (endpoint,) = ClientAddresses.from_dict(source).endpoints
    assert endpoint.index == 1


@pytest.mark.parametrize("stats", ["tcp://c:1", ["tcp://c:1"]])
def test_stats_address(stats) -> None:
    addresses = ClientAddresses.from_dict(changed(stats_update_address=stats))
    assert addresses.stats_update_address == "tcp://c:1"


@pytest.mark.parametrize("stats", [None, "", [], [""]])
def test_no_stats_address(stats) -> None:
    addresses = ClientAddresses.from_dict(changed(stats_update_address=stats))
    assert addresses.stats_update_address is None


REFUSED = [
    ({}, "client_addresses is empty: give input_address"),
    ({"input_address": "tcp://a:1"}, "output_address is missing"),
    (changed(input_adress="x"), "unknown key 'input_adress'"),
    (changed(mode="listen"), "mode 'listen' is unknown; use 'connect' or 'bind'"),
    (changed(input_address=5), "input_address must be a string or a list of strings"),
    (changed(input_address=[None]), "input_address must be a string or a list of strings"),
    (changed(input_address=["tcp://a:1", "tcp://b:1"]), "input_address has 2 entries and output"),
    (changed(input_address="tcp://*:5557"), r"wildcard host.*mode='bind'"),
    (changed(input_address="tcp://0.0.0.0:5557"), r"wildcard host.*mode='bind'"),
    (changed(output_address="tcp://[::]:5557"), r"output_address\[0\].*wildcard"),
    (changed(input_address="10.0.0.1:5557"), "must be tcp://host:port"),
    (changed(input_address="http://10.0.0.1:5557"), "must be tcp://host:port"),
    (changed(input_address="tcp://10.0.0.1"), "must be tcp://host:port"),
    (changed(input_address="tcp://:5557"), "must be tcp://host:port"),
    (changed(input_address="tcp://fd00::1:5557"), "write IPv6 in brackets"),
    (changed(input_address="tcp://a:0"), "port must be 1 to 65535"),
    (changed(input_address="tcp://a:70000"), "port must be 1 to 65535"),
    (changed(input_address="tcp://a:http"), "port must be 1 to 65535"),
    (changed(stats_update_address=["tcp://a:1", "tcp://b:1"]), "must be one address"),
    (
        {"input_address": ["tcp://a:1"] * 2, "output_address": ["tcp://a:2"] * 2},
        "two engines have the same addresses",
    ),
]


@pytest.mark.parametrize(("source", "text"), REFUSED)
def test_refused(source, text: str) -> None:
    with pytest.raises(AddressError, match=text):
        ClientAddresses.from_dict(source)


BOUND = [
    ("tcp://*:5557", "tcp://*:5558"),
    ("tcp://0.0.0.0:5557", "tcp://[::]:5557"),
    ("tcp://127.0.0.1:0", "tcp://127.0.0.1:0"),
    ("tcp://127.0.0.1:*", ["tcp://127.0.0.1:*"]),
    (["ipc:///run/i"], ["ipc:///run/o"]),
]


@pytest.mark.parametrize(("inputs", "outputs"), BOUND)
def test_bound(inputs, outputs) -> None:
    source = {"input_address": inputs, "output_address": outputs, "mode": "bind"}
    addresses = ClientAddresses.from_dict(source)
    assert addresses.mode == "bind"
    assert [len(addresses.input_address), len(addresses.output_address)] == [1, 1]


NOT_BOUND = [
    (changed(input_address=[]), "input_address has 0 entries; in mode 'bind' the client binds one"),
    (changed(output_address=["tcp://a:1", "tcp://b:1"]), "output_address has 2 entries"),
    (changed(input_address=[""]), "must be tcp://host:port"),
    (changed(input_address=GOOD["output_address"]), "are the same; give each its own"),
    (changed(input_address="tcp://10.0.0.1:70000"), "1 to 65535, or 0 for a free one"),
    (changed(input_address="tcp://:::5557"), "write IPv6 in brackets"),
    (changed(stats_update_address="tcp://*:1"), "stats_update_address .* wildcard"),
]


@pytest.mark.parametrize(("source", "text"), NOT_BOUND)
def test_not_bound(source, text: str) -> None:
    with pytest.raises(AddressError, match=text):
        ClientAddresses.from_dict(source | {"mode": "bind"})


def test_from_file(tmp_path: Path) -> None:
    path = tmp_path / "client_addresses.json"
    path.write_text(json.dumps(GOOD))
    assert ClientAddresses.from_file(path) == ClientAddresses.from_dict(GOOD)
    path.write_text("[1]")
    with pytest.raises(AddressError, match="not a JSON object of addresses"):
        ClientAddresses.from_file(path)
    with pytest.raises(AddressError, match="No such file"):
        ClientAddresses.from_file(tmp_path / "nothing")


def test_from_status() -> None:
    expected = ClientAddresses.from_dict(GOOD)
    assert ClientAddresses.from_status({"status": {"clientAddresses": GOOD}}) == expected
    assert ClientAddresses.from_status({"clientAddresses": GOOD}) == expected
    with pytest.raises(AddressError, match="no clientAddresses yet"):
        ClientAddresses.from_status({"status": {}})
    for status in (None, [], {"clientAddresses": ["tcp://a:1"]}):
        with pytest.raises(AddressError, match="no clientAddresses yet"):
            ClientAddresses.from_status({"status": status})


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("tcp://10.0.0.1:1", None),
        ("tcp://[::1]:1", None),
        ("tcp://[fe80::1%eth0]:1", None),
        ("ipc:///x", None),
        ("tcp://smollm-0.smollm:5557", "smollm-0.smollm"),
    ],
)
def test_names(address: str, name: str | None) -> None:
    assert host_name(address) == name
    assert Endpoint(0, address, "tcp://1.2.3.4:1").named is (name is not None)


@pytest.mark.parametrize(
    ("ip", "result"), [("10.0.0.9", "tcp://10.0.0.9:5557"), ("fd00::9", "tcp://[fd00::9]:5557")]
)
def test_with_host(ip: str, result: str) -> None:
    assert with_host("tcp://name:5557", ip) == result


def test_each_attempt_takes_the_next_ip_of_a_name(monkeypatch) -> None:
    found = [(0, 0, 0, "", ("fd00::1", 0, 0, 0)), (0, 0, 0, "", ("10.0.0.2", 0)),
             (0, 0, 0, "", ("10.0.0.1", 0)), (0, 0, 0, "", ("10.0.0.1", 0))]  # fmt: skip
    monkeypatch.setattr("socket.getaddrinfo", lambda *_: found)
    assert [resolve("tcp://name:5", attempt) for attempt in range(4)] == [
        "tcp://10.0.0.1:5",
        "tcp://10.0.0.2:5",
        "tcp://[fd00::1]:5",
        "tcp://10.0.0.1:5",
    ]
    assert resolve("tcp://10.1.1.1:5") == "tcp://10.1.1.1:5"
