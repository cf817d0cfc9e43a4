"""Where the coordinator is."""

import pytest

from enginecore_server.reports import AddressError, resolve, split_address


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("tcp://coordinator.ns.svc:5559", ("coordinator.ns.svc", 5559)),
        ("tcp://10.0.0.1:5559", ("10.0.0.1", 5559)),
        ("tcp://[fd00::1]:5559", ("fd00::1", 5559)),
    ],
)
def test_addresses(address: str, place: tuple[str, int]) -> None:
    assert split_address(address) == place


@pytest.mark.parametrize(
    "address",
    [
        "", "coordinator:5559", "tcp://coordinator", "ipc:///x:1", "tcp://:5559", "tcp://h:\u00b2",
        "tcp://h:0", "tcp://h:65536", "tcp://h:" + "9" * 5000, "tcp://a\0b:1", "tcp://[::1:5559",
        "tcp://::1:5559", "tcp://[h]:1",
    ],
)  # fmt: skip
def test_what_is_no_address_is_named(address: str) -> None:
    with pytest.raises(AddressError, match="coordinator_address"):
        split_address(address)


@pytest.mark.parametrize(
    ("host", "endpoint"),
    [("10.0.0.1", "tcp://10.0.0.1:1"), ("fd00::1", "tcp://[fd00::1]:1")],
)
async def test_ip_addresses_need_no_resolver(host: str, endpoint: str) -> None:
    assert await resolve(host, 1) == endpoint


async def test_a_name_that_cannot_be_one_does_not_resolve() -> None:
    with pytest.raises(OSError, match="label"):
        await resolve("a" * 70, 1)


async def test_names_become_addresses() -> None:
    assert await resolve("localhost", 7) in ("tcp://127.0.0.1:7", "tcp://[::1]:7")
