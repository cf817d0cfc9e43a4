"""Where a server listens: a name becomes an address before anything binds (C8)."""

import socket

import msgspec
import pytest

from enginecore_server.binding import BindError
from enginecore_server.hosts import resolve_listening
from enginecore_wire.contract import TransportConfig
from support.pod import stub_config


def listening_on(host: str) -> str:
    config = stub_config(transport=TransportConfig(host=host))
    resolved = resolve_listening(config)
    assert msgspec.structs.replace(resolved, transport=config.transport) == config
    return resolved.transport.host


@pytest.mark.parametrize("host", ["*", "127.0.0.1", "0.0.0.0", "::1", "fd00::7"])
def test_addresses_need_no_resolver(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", None)
    assert listening_on(host) == host


def test_a_name_becomes_an_address() -> None:
    assert listening_on("localhost") in ("127.0.0.1", "::1")


@pytest.mark.parametrize("host", ["engine.invalid", "[::1]", "a" * 70, "10.0.0.1.2"])
def test_a_name_that_does_not_resolve_is_named(host: str) -> None:
    with pytest.raises(BindError) as caught:
        listening_on(host)
    assert str(caught.value).startswith(f"transport.host: cannot listen on {host}: ")
    assert "give a name or IP address of this host without brackets" in str(caught.value)
