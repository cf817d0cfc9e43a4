"""Clients of data-parallel engines that step together: of one rank, or of all of them."""

from typing import Unpack

from enginecore_client._faces.aio import AsyncMPClient
from enginecore_client._faces.options import EngineOptions
from enginecore_client._shell.engines import Addresses


class DPAsyncMPClient(AsyncMPClient):
    """Client of one rank, for front ends that are balanced from outside.

    Requests carry the wave, and the first one after a pause is announced to the coordinator at
    `stats_update_address`, which wakes the other ranks. Without a coordinator nothing is
    announced; independent engines do not need one.

    Args:
        client_addresses: where the engines are (those of all ranks, or of this one alone).
        data_parallel_rank: the rank.
        options: see MPClient.

    Raises:
        AddressError: client_addresses are wrong, or have no engine of that rank.
        RequestRejectedError: an option is wrong.
    """

    def __init__(
        self,
        client_addresses: Addresses | None = None,
        *,
        data_parallel_rank: int = 0,
        **options: Unpack[EngineOptions],
    ) -> None:
        options.setdefault("lockstep", True)
        options.setdefault("engine_ranks", [data_parallel_rank])
        super().__init__(client_addresses, **options)

    @property
    def current_wave(self) -> int:
        """Return the wave that requests carry, which is how many have ended."""
        return self._driver.core.waves.current_wave


class DPLBAsyncMPClient(DPAsyncMPClient):
    """Client of all ranks (or of those in `engine_ranks`) that balances load between them.

    The engine with the lowest load score gets a request, unless `data_parallel_rank` names one;
    documents of a late-interaction query go to the engine that keeps the query.

    Args:
        client_addresses: where the engines are.
        options: see MPClient.

    Raises:
        AddressError: client_addresses are wrong.
        RequestRejectedError: an option is wrong.
    """

    def __init__(
        self, client_addresses: Addresses | None = None, **options: Unpack[EngineOptions]
    ) -> None:
        options.setdefault("engine_ranks", None)
        super().__init__(client_addresses, **options)
