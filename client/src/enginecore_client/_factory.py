"""Which client is made for which way of running engines."""

from collections.abc import Callable
from typing import Unpack

from enginecore_client._aio import AsyncMPClient
from enginecore_client._dp import DPAsyncMPClient, DPLBAsyncMPClient
from enginecore_client._engines import Addresses
from enginecore_client._face import EngineCoreClient
from enginecore_client._inproc import InprocClient
from enginecore_client._options import ClientOptions, EngineOptions, SharedOptions
from enginecore_client._sync import SyncMPClient
from enginecore_client.errors import RequestRejectedError
from enginecore_wire.engine import EngineLike


def make_client(
    multiprocess_mode: bool,
    asyncio_mode: bool,
    client_addresses: Addresses | None = None,
    *,
    engine: EngineLike | Callable[[], EngineLike] | None = None,
    data_parallel_size: int = 1,
    data_parallel_rank: int = 0,
    data_parallel_external_lb: bool = False,
    **options: Unpack[ClientOptions],
) -> EngineCoreClient:
    """Return the client for a way of running engines.

    Args:
        multiprocess_mode: the engines are other processes; if not, `engine` is in this one.
        asyncio_mode: the client is awaited; if not, it blocks.
        client_addresses: where the engines are (multiprocess), None to start them; see MPClient.
        engine: the engine, or a function that makes it (in this process); see InprocClient.
        data_parallel_size: how many engines step together; see `make_async_mp_client`.
        data_parallel_rank: the one rank to use, if balanced from outside.
        data_parallel_external_lb: each client uses one rank, something else balances.
        options: see MPClient; in this process only `registry` and `tokenizer` have a meaning.

    Raises:
        RequestRejectedError: the parameters do not go together; `field` names the culprit.
        AddressError: client_addresses are wrong.
    """
    if multiprocess_mode and asyncio_mode:
        return make_async_mp_client(
            client_addresses,
            data_parallel_size=data_parallel_size,
            data_parallel_rank=data_parallel_rank,
            data_parallel_external_lb=data_parallel_external_lb,
            **options,
        )
    if multiprocess_mode:
        options.setdefault("lockstep", data_parallel_size > 1)
        return SyncMPClient(
            _given(client_addresses, options), data_parallel_size=data_parallel_size, **options
        )
    if asyncio_mode:
        raise RequestRejectedError(
            "asyncio_mode: got True, allowed: False without multiprocess_mode, because a step of "
            "an engine in this process would hold up the event loop; use multiprocess_mode, or "
            "InprocClient in a thread of its own",
            field="asyncio_mode",
        )
    if engine is None:
        raise RequestRejectedError(
            "engine: got None, allowed: an engine, or a function that makes one, because the "
            "client runs it in this process",
            field="engine",
        )
    return InprocClient(
        engine, registry=options.get("registry"), tokenizer=options.get("tokenizer")
    )


def make_async_mp_client(
    client_addresses: Addresses | None = None,
    client_count: int = 1,
    client_index: int = 0,
    *,
    data_parallel_size: int = 1,
    data_parallel_rank: int = 0,
    data_parallel_external_lb: bool = False,
    **options: Unpack[SharedOptions],
) -> AsyncMPClient:
    """Return the awaited client for `data_parallel_size` engines that step together.

    Independent engines, however many, count as size 1: AsyncMPClient balances between them.

    Args:
        client_addresses: where the engines are, None to start them; see MPClient.
        client_count: how many clients share the engines.
        client_index: this client's place among them, from 0.
        data_parallel_size: how many engines step together; with more than one they have waves.
        data_parallel_rank: the one rank to use, if balanced from outside.
        data_parallel_external_lb: each client uses one rank, something else balances.
        options: see MPClient.

    Returns:
        DPAsyncMPClient if balanced from outside, DPLBAsyncMPClient for more than one engine
        otherwise, AsyncMPClient for one.

    Raises:
        RequestRejectedError: an option is wrong.
        AddressError: client_addresses are wrong.
    """
    addresses = _given(client_addresses, options)
    if type(data_parallel_size) is not int or data_parallel_size < 1:
        raise RequestRejectedError(
            f"data_parallel_size: got {data_parallel_size!r}, allowed: 1 or more",
            field="data_parallel_size",
        )
    whole: EngineOptions = {
        **options,
        "data_parallel_size": data_parallel_size,
        "client_count": client_count,
        "client_index": client_index,
    }
    if data_parallel_size == 1:
        return AsyncMPClient(addresses, **whole)
    if data_parallel_external_lb:
        return DPAsyncMPClient(addresses, data_parallel_rank=data_parallel_rank, **whole)
    return DPLBAsyncMPClient(addresses, **whole)


def _given(client_addresses: Addresses | None, options: SharedOptions) -> Addresses | None:
    if client_addresses is None and options.get("engine_command") is None:
        raise RequestRejectedError(
            "client_addresses: got None, allowed: where the engines are, or an engine_command by "
            "which to start them",
            field="client_addresses",
        )
    return client_addresses
