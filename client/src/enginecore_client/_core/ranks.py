"""Which data-parallel ranks a client manages."""

from collections.abc import Sequence
from typing import Any, Final

from enginecore_client.errors import RequestRejectedError

LAST_RANK: Final = 65535
"""An engine's name is its rank in 2 bytes."""


def engine_ranks(
    data_parallel_size: int,
    *,
    data_parallel_rank: int = 0,
    local_size: int | None = None,
    offline: bool = False,
    external_lb: bool = False,
) -> list[int]:
    """Return the ranks of the engines that one client manages, in order.

    Args:
        data_parallel_size: how many ranks there are.
        data_parallel_rank: this client's rank, or the first of its ranks.
        local_size: how many ranks from that one on it manages, where each node balances its own;
            None for all there are.
        offline: the client is one of as many, each with the engine of its own rank.
        external_lb: something else balances over clients, each with one engine.

    Raises:
        RequestRejectedError: the numbers do not go together; `field` names the culprit.
    """
    _check("data_parallel_size", data_parallel_size, 1, LAST_RANK + 1)
    _check("data_parallel_rank", data_parallel_rank, 0, data_parallel_size - 1)
    if offline or external_lb:
        return [data_parallel_rank]
    if local_size is None:
        return list(range(data_parallel_size))
    _check("local_size", local_size, 1, data_parallel_size - data_parallel_rank)
    return list(range(data_parallel_rank, data_parallel_rank + local_size))


def checked_ranks(ranks: Sequence[int], data_parallel_size: int | None) -> tuple[int, ...]:
    """Return a caller's choice of ranks.

    Raises:
        RequestRejectedError: one is no rank, or stands there twice.
    """
    last = LAST_RANK if data_parallel_size is None else data_parallel_size - 1
    if not isinstance(ranks, Sequence) or isinstance(ranks, str | bytes) or not ranks:
        raise _wrong("engine_ranks", ranks, "a list of at least one rank")
    for rank in ranks:
        _check("engine_ranks", rank, 0, last)
    if len(set(ranks)) != len(ranks):
        raise _wrong("engine_ranks", list(ranks), "each rank once")
    return tuple(ranks)


def started_ranks(local_ranks: Sequence[int] | None, expected: Sequence[int]) -> tuple[int, ...]:
    """Return the ranks whose engines are started here.

    Args:
        local_ranks: as the caller says; None for all.
        expected: the ranks there are.

    Raises:
        RequestRejectedError: one is not expected, or stands there twice.
    """
    if local_ranks is None:
        return tuple(expected)
    field, allowed = "launch.local_ranks", f"some of {', '.join(map(str, expected))}, or None"
    if not isinstance(local_ranks, Sequence) or isinstance(local_ranks, str | bytes):
        raise _wrong(field, local_ranks, allowed)
    plain = all(type(rank) is int and rank in expected for rank in local_ranks)
    if not local_ranks or not plain or len(set(local_ranks)) != len(local_ranks):
        raise _wrong(field, local_ranks, allowed)
    return tuple(local_ranks)


def _check(field: str, value: Any, low: int, high: int) -> None:
    if type(value) is not int or not low <= value <= high:
        raise _wrong(field, value, f"{low} to {high}")


def _wrong(field: str, value: Any, allowed: str) -> RequestRejectedError:
    return RequestRejectedError(f"{field}: got {value!r}, allowed: {allowed}", field=field)
