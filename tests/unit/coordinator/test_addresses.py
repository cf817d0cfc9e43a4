"""Where the coordinator listens: a name becomes an address before anything binds (C8)."""

import pytest

from enginecore_coordinator.addresses import resolve_listening


@pytest.mark.parametrize(
    "address", ["tcp://*:5559", "tcp://127.0.0.1:*", "tcp://[::1]:5559", "tcp://[::]:*"]
)
def test_addresses_stay(address: str) -> None:
    assert resolve_listening(address) == address


@pytest.mark.parametrize("port", ["5559", "*"])
def test_a_name_becomes_an_address(port: str) -> None:
    found = resolve_listening(f"tcp://localhost:{port}")
    assert found in (f"tcp://127.0.0.1:{port}", f"tcp://[::1]:{port}")


@pytest.mark.parametrize("host", ["coordinator.invalid", "a" * 70])
def test_a_name_that_does_not_resolve_is_named(host: str) -> None:
    with pytest.raises(OSError, match=f"^{host}: "):
        resolve_listening(f"tcp://{host}:5559")
