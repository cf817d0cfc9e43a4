"""The public keys of engine servers and of the coordinator in `client_addresses`."""

from collections.abc import Mapping
from typing import Any

from enginecore_client.errors import AddressError
from enginecore_wire.public_keys import KEY_CHARACTERS, is_key


def server_keys(source: Mapping[str, Any], mode: str, engines: int) -> tuple[str, ...]:
    """Return `server_key` as one key per engine, () where there is none.

    Raises:
        AddressError: it is wrong.
    """
    value = source.get("server_key") or ()
    keys = [value] * engines if isinstance(value, str) else value
    if not isinstance(keys, list | tuple) or not all(isinstance(key, str) for key in keys):
        raise AddressError("client_addresses: server_key must be a string or a list of strings")
    if keys and mode == "bind":
        raise AddressError(
            "client_addresses: server_key is given in mode 'bind', where engines dial in without "
            "CURVE; leave it out"
        )
    if keys and len(keys) != engines:
        raise AddressError(
            f"client_addresses: server_key has {len(keys)} entries and input_address {engines}; "
            "give one for all, or index i for engine i"
        )
    for index, key in enumerate(keys):
        if key:
            _check(f"server_key[{index}]", key)
    return tuple(keys)


def stats_server_key(source: Mapping[str, Any]) -> str:
    """Return the coordinator's public key, "" where there is none.

    Raises:
        AddressError: it is wrong, or there is no coordinator.
    """
    key = source.get("stats_server_key") or ""
    if key and not source.get("stats_update_address"):
        raise AddressError(
            "client_addresses: stats_server_key is given without stats_update_address; give the "
            "coordinator's address, or leave the key out"
        )
    if key:
        _check("stats_server_key", key)
    return str(key)


def _check(field: str, key: Any) -> None:
    if not isinstance(key, str) or not is_key(key):
        raise AddressError(
            f"client_addresses: {field} must be a public key, {KEY_CHARACTERS} characters of Z85"
        )
