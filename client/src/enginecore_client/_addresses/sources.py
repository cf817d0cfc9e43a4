"""Where client addresses come from, and how they are followed while the client lives."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

from enginecore_client._addresses.addresses import ClientAddresses
from enginecore_client.errors import AddressError

POLL_SECONDS: Final = 1.0
"""How often a file is looked at."""

FIXED: Final = (
    "these addresses are fixed, and an engine that is replaced gets another one: give the path of "
    "a file or a ClusterSource, which follow replacements"
)


class AddressSource(Protocol):
    """Gives addresses, and newer ones later."""

    def start(self, wake: Callable[[], None]) -> None:
        """Begin; `wake` may be called from any thread when there is something new."""

    def poll(self, now: float) -> ClientAddresses | None:
        """Return addresses that changed since the last poll, or None; never blocks long."""

    def close(self) -> None:
        """Stop; called once."""

    def describe(self) -> str:
        """Return where the addresses come from, for an error's text."""


class StaticSource:
    """Addresses that stay as they are; `advice` says what else to use if engines move."""

    def __init__(self, addresses: ClientAddresses) -> None:
        if addresses.mode == "connect" and not addresses.endpoints:
            raise AddressError("client_addresses name no engine: input_address is empty")
        self._addresses: ClientAddresses | None = addresses
        self.advice = FIXED if addresses.fixed else ""

    def start(self, wake: Callable[[], None]) -> None:
        """Begin."""

    def poll(self, now: float) -> ClientAddresses | None:  # noqa: ARG002 - nothing ever changes
        """Return the addresses the first time."""
        addresses, self._addresses = self._addresses, None
        return addresses

    def close(self) -> None:
        """Stop."""

    def describe(self) -> str:
        """Return where the addresses come from."""
        return "client_addresses"


class FileSource:
    """A JSON file, such as the operator's ConfigMap as a volume, read again when it changes.

    kubelet replaces such a volume by swapping a symbolic link; what is compared is therefore
    the file that the path leads to. A file that cannot be read later on changes nothing; `problem`
    says what is wrong with it.

    Raises:
        AddressError: the file is not there or does not hold addresses.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.problem = ""
        self._path = os.fspath(path)
        self._seen = self._look()
        self._first: ClientAddresses | None = ClientAddresses.from_file(self._path)
        self._poll_at: float | None = None

    def start(self, wake: Callable[[], None]) -> None:
        """Begin."""

    def poll(self, now: float) -> ClientAddresses | None:
        """Return what the file holds, if it changed."""
        if self._first is not None:
            first, self._first = self._first, None
            self._poll_at = now + POLL_SECONDS
            return first
        if self._poll_at is not None and now < self._poll_at:
            return None
        self._poll_at = now + POLL_SECONDS
        look = self._look()
        if look == self._seen:
            return None
        try:
            addresses = ClientAddresses.from_file(self._path)
        except AddressError as error:
            self.problem = error.message
            return None
        if addresses.mode != "connect":
            self.problem = "a client that connects cannot change to mode 'bind'; create another one"
            return None
        self.problem = ""
        self._seen = look
        return addresses

    def close(self) -> None:
        """Stop."""

    def describe(self) -> str:
        """Return where the addresses come from."""
        return f"{self._path}" + (f" ({self.problem})" if self.problem else "")

    def _look(self) -> tuple[int, ...]:
        try:
            stat = os.stat(self._path)
        except (OSError, ValueError):
            return ()
        return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


class RankSource:
    """The addresses of some ranks alone; a single address stands for a single rank, unless there
    once were more: then it is rank 0's.

    Raises:
        AddressError: the addresses are known and there is none for these ranks.
    """

    def __init__(self, source: AddressSource, ranks: Sequence[int]) -> None:
        self.source = source
        self._ranks = tuple(ranks)
        self._several = False
        self._first = self._only(source.poll(0.0))
        if self._first is not None and not self._first.endpoints:
            raise AddressError(
                f"client_addresses name no engine of rank {self._names()}; index i is rank i"
            )

    def start(self, wake: Callable[[], None]) -> None:
        """Begin."""
        self.source.start(wake)

    def poll(self, now: float) -> ClientAddresses | None:
        """Return addresses that changed since the last poll, or None."""
        first, self._first = self._first, None
        return first or self._only(self.source.poll(now))

    def close(self) -> None:
        """Stop."""
        self.source.close()

    def describe(self) -> str:
        """Return where the addresses come from, and of which ranks they are."""
        return f"{self.source.describe()}, rank {self._names()}"

    def _only(self, addresses: ClientAddresses | None) -> ClientAddresses | None:
        if addresses is None or addresses.mode != "connect":
            return addresses
        self._several = self._several or len(addresses.input_address) > 1
        if not self._several and len(self._ranks) == 1:
            return addresses

        def chosen(column: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(a if rank in self._ranks else "" for rank, a in enumerate(column))

        return msgspec.structs.replace(
            addresses,
            input_address=chosen(addresses.input_address),
            output_address=chosen(addresses.output_address),
        )

    def _names(self) -> str:
        return ", ".join(map(str, self._ranks))


def advice_of(source: AddressSource) -> str:
    """Return what to do where nobody answers at a source's addresses any more; "" for nothing."""
    if isinstance(source, RankSource):
        return advice_of(source.source)
    advice: str = getattr(source, "advice", "")
    return advice


def failure_of(source: AddressSource) -> AddressError | None:
    """Return why a source will never have addresses, None while it may."""
    if isinstance(source, RankSource):
        return failure_of(source.source)
    failure: AddressError | None = getattr(source, "failure", None)
    return failure


def scaler_of(source: AddressSource) -> Callable[[int], None] | None:
    """Return what sets the number of engines behind a source; None if it cannot be set."""
    if isinstance(source, RankSource):
        return scaler_of(source.source)
    scale: Callable[[int], None] | None = getattr(source, "scale", None)
    return scale


def source_of(
    addresses: "Mapping[str, Any] | str | os.PathLike[str] | ClientAddresses | AddressSource",
) -> AddressSource:
    """Return the source that `client_addresses` stand for: a dict, a file's path, typed
    addresses, or a source.

    Raises:
        AddressError: they are wrong.
    """
    if isinstance(addresses, ClientAddresses):
        return StaticSource(addresses.checked())
    if isinstance(addresses, str | os.PathLike):
        return FileSource(addresses)
    if isinstance(addresses, Mapping):
        return StaticSource(ClientAddresses.from_dict(addresses))
    if hasattr(addresses, "poll"):
        return addresses
    raise AddressError(
        f"client_addresses: {type(addresses).__name__} is neither a dict, the path of a JSON "
        "file, ClientAddresses, nor an address source"
    )
