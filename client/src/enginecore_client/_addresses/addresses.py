"""Where engines listen: `client_addresses`, checked once and typed from then on."""

import os
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from enginecore_client._addresses.server_keys import server_keys, stats_server_key
from enginecore_client.errors import AddressError

_KEYS = frozenset(
    {"input_address", "output_address", "stats_update_address", "mode", "server_key",
     "stats_server_key"}
)  # fmt: skip
_LAST_PORT = 65535
_ANY_PORT = ("0", "*")
_WILDCARDS = frozenset({"*", "0.0.0.0", "[::]", "::"})

Mode = Literal["connect", "bind"]
"""Who binds: `connect` leaves it to the engines' pods, `bind` does it here."""


class Endpoint(msgspec.Struct, frozen=True):
    """The two addresses of one engine; `index` is its place in the lists, the expected rank.
    `server_key` is its public key, "" without CURVE."""

    index: int
    input_address: str
    output_address: str
    server_key: str = ""

    @property
    def addresses(self) -> tuple[str, str]:
        """Return both addresses."""
        return self.input_address, self.output_address

    @property
    def key(self) -> tuple[str, ...]:
        """Return what tells one endpoint from another."""
        return self.addresses

    @property
    def named(self) -> bool:
        """Say whether an address holds a name, which has to be resolved."""
        return any(host_name(address) for address in self.addresses)


class BoundEndpoint(Endpoint, frozen=True):
    """The place of one engine among those that dial in; all have the client's two addresses."""

    @property
    def key(self) -> tuple[str, ...]:
        """Return what tells one endpoint from another."""
        return *self.addresses, str(self.index)

    @property
    def named(self) -> bool:
        """Say no: the client binds these addresses, there is nothing to look up."""
        return False


class ClientAddresses(msgspec.Struct, frozen=True):
    """Addresses of engines and of the coordinator.

    In `connect` mode index i of both lists is engine i; an empty string stands for an engine
    that has no address at present. In `bind` mode each list has one address: the client's own,
    into which engines dial. `server_key` has the public key of each engine's server, and
    `stats_server_key` the coordinator's, where they speak CURVE.
    """

    input_address: tuple[str, ...]
    output_address: tuple[str, ...]
    stats_update_address: str | None = None
    mode: Mode = "connect"
    server_key: tuple[str, ...] = ()
    stats_server_key: str = ""

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return the engines that have an address (in `connect` mode)."""
        pairs = zip(self.input_address, self.output_address, strict=True)
        keys = self.server_key or ("",) * len(self.input_address)
        return tuple(
            Endpoint(i, *pair, key)
            for i, (pair, key) in enumerate(zip(pairs, keys, strict=True))
            if all(pair)
        )

    @property
    def fixed(self) -> bool:
        """Say whether an engine is known by an IP address alone, which its successor may not
        have."""
        return self.mode == "connect" and any(
            address.startswith("tcp:") and host_name(address) is None
            for endpoint in self.endpoints
            for address in endpoint.addresses
        )

    def checked(self) -> "ClientAddresses":
        """Return these addresses, made by hand, as `from_dict` would have made them.

        Raises:
            AddressError: something is wrong; the text names the key and the remedy.
        """
        return self.from_dict(msgspec.structs.asdict(self))

    @classmethod
    def from_dict(cls, source: Mapping[str, Any]) -> "ClientAddresses":
        """Check and convert a `client_addresses` dict.

        `input_address` and `output_address` are a string or a list of strings of equal
        length; `stats_update_address` (optional) is the coordinator's; `mode` is `connect`;
        `server_key` and `stats_server_key` are public keys, for CURVE.

        Raises:
            AddressError: something is wrong; the text names the key and the remedy.
        """
        if not source:
            raise AddressError(
                "client_addresses is empty: give input_address and output_address, "
                "or a file or cluster that has them"
            )
        unknown = sorted(set(source) - _KEYS, key=str)
        if unknown:
            raise AddressError(
                f"client_addresses: unknown key {unknown[0]!r}; known are {sorted(_KEYS)}"
            )
        mode = _mode(source.get("mode", "connect"))
        inputs = _strings(source, "input_address")
        outputs = _strings(source, "output_address")
        if mode == "bind":
            _check_bound(inputs, outputs)
        elif len(inputs) != len(outputs):
            raise AddressError(
                f"client_addresses: input_address has {len(inputs)} entries and output_address "
                f"{len(outputs)}; index i of both must be engine i"
            )
        else:
            for key, addresses in (("input_address", inputs), ("output_address", outputs)):
                for i, address in enumerate(addresses):
                    if address:
                        _check_address(f"{key}[{i}]", address)
        keys = server_keys(source, mode, len(inputs))
        coordinator = _stats_address(source)
        result = cls(inputs, outputs, coordinator, mode, keys, stats_server_key(source))
        places = [endpoint.key for endpoint in result.endpoints]
        if len(set(places)) != len(places):
            raise AddressError("client_addresses: two engines have the same addresses")
        return result

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> "ClientAddresses":
        """Read a JSON file that holds the dict (the operator's ConfigMap).

        Raises:
            AddressError: the file cannot be read, is no JSON object, or from_dict refuses it.
        """
        try:
            with open(path, "rb") as file:
                source = msgspec.json.decode(file.read(), type=dict[str, Any])
        except OSError as error:
            raise AddressError(f"client_addresses file {path}: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise AddressError(
                f"client_addresses file {path}: not a JSON object of addresses ({error})"
            ) from error
        return cls.from_dict(source)

    @classmethod
    def from_status(cls, resource: Mapping[str, Any]) -> "ClientAddresses":
        """Take `status.clientAddresses` of an EngineCluster (the object, or its status).

        Raises:
            AddressError: the status has no addresses yet, or from_dict refuses them.
        """
        status = resource.get("status", resource)
        addresses = status.get("clientAddresses") if isinstance(status, Mapping) else None
        if not addresses or not isinstance(addresses, Mapping):
            raise AddressError("EngineCluster status has no clientAddresses yet")
        return cls.from_dict(addresses)


def host_name(address: str) -> str | None:
    """Return the host of a tcp address if it is a name, None if it is an IP or not tcp."""
    scheme, _, rest = address.partition("://")
    if scheme != "tcp":
        return None
    host = rest.rpartition(":")[0]
    return None if _is_ip(host.strip("[]")) else host


def with_host(address: str, ip: str) -> str:
    """Return a tcp address with its host replaced by an IP; IPv6 is bracketed."""
    port = address.rpartition(":")[2]
    return f"tcp://[{ip}]:{port}" if ":" in ip else f"tcp://{ip}:{port}"


def _is_ip(host: str) -> bool:
    import ipaddress  # noqa: PLC0415 - not before there are addresses

    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def _mode(mode: Any) -> Mode:
    if mode == "bind":
        return "bind"
    if mode == "connect":
        return "connect"
    raise AddressError(f"client_addresses: mode {mode!r} is unknown; use 'connect' or 'bind'")


def _check_bound(inputs: tuple[str, ...], outputs: tuple[str, ...]) -> None:
    for key, addresses in (("input_address", inputs), ("output_address", outputs)):
        if len(addresses) != 1:
            raise AddressError(
                f"client_addresses: {key} has {len(addresses)} entries; in mode 'bind' the client "
                "binds one address for all engines (say with data_parallel_size or engine_ranks "
                "how many dial in)"
            )
        _check_address(key, addresses[0], bound=True)
    port = inputs[0].rpartition(":")[2]
    if inputs == outputs and port not in _ANY_PORT:
        raise AddressError(
            "client_addresses: input_address and output_address are the same; give each its own"
        )


def _strings(source: Mapping[str, Any], key: str) -> tuple[str, ...]:
    if key not in source:
        raise AddressError(f"client_addresses: {key} is missing")
    value = source[key]
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or not all(isinstance(item, str) for item in items):
        raise AddressError(f"client_addresses: {key} must be a string or a list of strings")
    return tuple(items)


def _stats_address(source: Mapping[str, Any]) -> str | None:
    if not source.get("stats_update_address"):
        return None
    addresses = [a for a in _strings(source, "stats_update_address") if a]
    if len(addresses) > 1:
        raise AddressError("client_addresses: stats_update_address must be one address")
    for address in addresses:
        _check_address("stats_update_address", address)
    return addresses[0] if addresses else None


def _check_address(key: str, address: str, *, bound: bool = False) -> None:
    scheme, separator, rest = address.partition("://")
    if not address.isprintable() or " " in address:
        raise AddressError(
            f"client_addresses: {key} {address!r} holds a space or a control character; remove it"
        )
    if scheme == "ipc" and rest:
        return
    if scheme != "tcp" or not separator:
        raise AddressError(f"client_addresses: {key} {address!r} must be tcp://host:port")
    host, colon, port = rest.rpartition(":")
    if host in _WILDCARDS and not bound:
        raise AddressError(
            f"client_addresses: {key} {address!r} has a wildcard host, to which nobody can "
            "connect; name the engine's host, or say mode='bind' for engines that dial in"
        )
    if not colon or not host:
        raise AddressError(f"client_addresses: {key} {address!r} must be tcp://host:port")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise AddressError(
            f"client_addresses: {key} {address!r}: write IPv6 in brackets, tcp://[::1]:5557"
        )
    if bound and port in _ANY_PORT:
        return
    digits = port.isascii() and port.isdigit() and len(port) <= len(str(_LAST_PORT))
    if not digits or not 1 <= int(port) <= _LAST_PORT:
        raise AddressError(
            f"client_addresses: {key} {address!r}: port must be 1 to 65535"
            + (", or 0 for a free one" if bound else "")
        )
