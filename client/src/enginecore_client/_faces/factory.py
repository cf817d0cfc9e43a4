"""Which client is made for which way of running engines."""

from collections.abc import Callable
from typing import Final, Unpack

from enginecore_client._core.ranks import engine_ranks
from enginecore_client._faces.aio import AsyncMPClient
from enginecore_client._faces.dp import DPAsyncMPClient, DPLBAsyncMPClient
from enginecore_client._faces.face import EngineCoreClient
from enginecore_client._faces.inproc import InprocClient
from enginecore_client._faces.options import ClientOptions, EngineOptions, SharedOptions
from enginecore_client._faces.sync import SyncMPClient
from enginecore_client._shell.engines import Addresses
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
        options: see MPClient; in this process only `registry` and `tokenizer`.

    Raises:
        RequestRejectedError: the parameters do not go together; `field` names the culprit.
        AddressError: client_addresses are wrong.
    """
    if multiprocess_mode and engine is not None:
        raise RequestRejectedError(
            "engine: given together with multiprocess_mode, allowed: only without it, as the "
            "client runs it in this process",
            field="engine",
        )
    if multiprocess_mode and asyncio_mode:
        return make_async_mp_client(
            client_addresses,
            data_parallel_size=data_parallel_size,
            data_parallel_rank=data_parallel_rank,
            data_parallel_external_lb=data_parallel_external_lb,
            **options,
        )
    if multiprocess_mode:
        _given(client_addresses, options)
        _check_rank(data_parallel_size, data_parallel_rank, data_parallel_external_lb)
        options.setdefault("lockstep", data_parallel_size > 1)
        if data_parallel_external_lb and data_parallel_size > 1:
            options.setdefault("engine_ranks", [data_parallel_rank])
        return SyncMPClient(client_addresses, data_parallel_size=data_parallel_size, **options)
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
    unknown = [name for name in options if name not in _INPROC]
    for name, differs in (
        ("client_addresses", client_addresses is not None),
        ("data_parallel_size", data_parallel_size != 1),
        ("data_parallel_rank", data_parallel_rank != 0),
        ("data_parallel_external_lb", data_parallel_external_lb),
    ):
        if differs:
            unknown.append(name)
    if unknown:
        raise RequestRejectedError(
            f"{unknown[0]}: given without multiprocess_mode, allowed: engine, "
            f"{', '.join(sorted(_INPROC))}, because the engine is in this process",
            field=unknown[0],
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
    _check_rank(data_parallel_size, data_parallel_rank, data_parallel_external_lb)
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


def _check_rank(size: int, rank: int, external_lb: bool) -> None:
    engine_ranks(size, data_parallel_rank=rank)
    if rank and not external_lb:
        raise RequestRejectedError(
            f"data_parallel_rank: got {rank}, allowed: 0 without data_parallel_external_lb, as "
            "the client then uses all ranks; set that, or give engine_ranks",
            field="data_parallel_rank",
        )


def _given(client_addresses: Addresses | None, options: SharedOptions) -> Addresses | None:
    if client_addresses is None and options.get("engine_command") is None:
        raise RequestRejectedError(
            "client_addresses: got None, allowed: where the engines are, or an engine_command by "
            "which to start them",
            field="client_addresses",
        )
    return client_addresses


_INPROC: Final = frozenset({"registry", "tokenizer"})
"""The options that the client of an engine in this process has, too."""
