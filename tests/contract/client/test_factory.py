"""Which class make_client and make_async_mp_client choose, and what they refuse."""

from typing import Any

import pytest

from enginecore_client import (
    AddressError,
    AsyncMPClient,
    DPAsyncMPClient,
    DPLBAsyncMPClient,
    EngineCoreClient,
    InprocClient,
    RequestRejectedError,
    SamplingParams,
    StartupTimeoutError,
    SyncMPClient,
    make_async_mp_client,
    make_client,
)
from enginecore_client.testing import FakeEngineCore
from support.native_engines import FREE
from support.protocol_peer import ProtocolPeer

TWO = {
    "input_address": ["tcp://127.0.0.1:9", "tcp://127.0.0.1:11"],
    "output_address": ["tcp://127.0.0.1:10", "tcp://127.0.0.1:12"],
}

AWAITED: list[tuple[dict[str, Any], type[AsyncMPClient], list[int], bool]] = [
    ({}, AsyncMPClient, [0, 1], False),
    ({"data_parallel_size": 1, "data_parallel_external_lb": True}, AsyncMPClient, [0, 1], False),
    ({"data_parallel_size": 2}, DPLBAsyncMPClient, [0, 1], True),
    (
        {"data_parallel_size": 2, "data_parallel_external_lb": True, "data_parallel_rank": 1},
        DPAsyncMPClient,
        [1],
        True,
    ),
    ({"data_parallel_size": 2, "engine_ranks": [1]}, DPLBAsyncMPClient, [1], True),
    ({"data_parallel_size": 2, "lockstep": False}, DPLBAsyncMPClient, [0, 1], False),
]


@pytest.mark.parametrize(("options", "kind", "ranks", "lockstep"), AWAITED)
async def test_awaited_clients(
    options: dict[str, Any], kind: type[AsyncMPClient], ranks: list[int], lockstep: bool
) -> None:
    for client in (
        make_async_mp_client(TWO, 3, 2, **options),
        EngineCoreClient.make_async_mp_client(TWO, 3, 2, **options),
        make_client(True, True, TWO, client_count=3, client_index=2, **options),
    ):
        assert type(client) is kind
        assert (client.client_count, client.client_index) == (3, 2)
        assert client.engine_ranks_managed == ranks
        assert client.core_engines == [bytes([rank, 0]) for rank in ranks]
        assert client.core_engine == client.core_engines[0]
        assert client._driver.core.waves.lockstep is lockstep
        client.shutdown()


def test_blocking_clients(peer: ProtocolPeer) -> None:
    for made in (
        make_client(True, False, peer.addresses),
        make_client(True, False, peer.addresses, data_parallel_size=2),
        EngineCoreClient.make_client(True, False, peer.addresses),
    ):
        assert type(made) is SyncMPClient
        made.shutdown()


def test_blocking_client_of_one_rank() -> None:
    one = {"data_parallel_size": 2, "data_parallel_rank": 1, "data_parallel_external_lb": True}
    with pytest.raises(StartupTimeoutError) as caught:
        make_client(True, False, FREE, ready_timeout=0.1, **one)
    assert "rank 1 at" in str(caught.value)
    assert "rank 0 at" not in str(caught.value)


def test_an_engine_in_this_process() -> None:
    engine = FakeEngineCore()
    for given in (engine, lambda: engine):
        client = make_client(False, False, engine=given)
        assert type(client) is InprocClient
        assert client.engine_core is engine
        assert [
            output.new_token_ids for output in client.generate([5], SamplingParams(max_tokens=1))
        ] == [[5]]
        client.shutdown()
    assert engine.ended == 2


REFUSED: list[tuple[tuple[Any, ...], dict[str, Any], str, str]] = [
    ((False, True), {}, "asyncio_mode", "hold up the event loop"),
    ((False, False), {}, "engine", "an engine, or a function that makes one"),
    ((False, False), {"engine": object()}, "engine", "object is no engine, it has no limits"),
    ((False, False), {"engine": "enginecore_torch"}, "engine", "str is no engine"),
    ((True, True, TWO), {"data_parallel_size": 0}, "data_parallel_size", "1 to"),
    ((True, True, TWO), {"data_parallel_size": "2"}, "data_parallel_size", "1 to"),
    ((True, False, TWO), {"data_parallel_size": "2"}, "data_parallel_size", "1 to"),
    ((True, True, TWO), {"data_parallel_rank": 1}, "data_parallel_rank", "0 to 0"),
    (
        (True, True, TWO),
        {"data_parallel_size": 2, "data_parallel_rank": 1},
        "data_parallel_rank",
        "0 without data_parallel_external_lb",
    ),
    ((True, False, TWO), {"engine": FakeEngineCore()}, "engine", "together with multiprocess_mode"),
    ((False, False, TWO), {"engine": FakeEngineCore()}, "client_addresses", "in this process"),
    *(
        ((False, False), {"engine": FakeEngineCore(), name: value}, name, "in this process")
        for name, value in [
            ("ready_timeout", 5.0),
            ("retry", True),
            ("engine_command", ["run", "{port}"]),
            ("data_parallel_size", 2),
            ("data_parallel_external_lb", True),
        ]
    ),
    ((True, True, TWO), {"client_index": 1}, "client_index", "0 to 0; raise client_count"),
    ((True, True, TWO), {"client_count": 0}, "client_count", "1 or more"),
    ((True, False, TWO), {"client_index": -1}, "client_index", "0 to 0"),
    ((True, False, TWO), {"ready_timeout": "x"}, "ready_timeout", "seconds"),
]


@pytest.mark.parametrize(("arguments", "options", "field", "words"), REFUSED)
def test_refused(
    arguments: tuple[Any, ...], options: dict[str, Any], field: str, words: str
) -> None:
    with pytest.raises(RequestRejectedError, match=words) as caught:
        make_client(*arguments, **options)
    assert caught.value.field == field


def test_a_rank_without_an_address() -> None:
    with pytest.raises(AddressError, match="no engine of rank 2"):
        make_async_mp_client(
            TWO, data_parallel_size=3, data_parallel_external_lb=True, data_parallel_rank=2
        )


def test_addresses_of_one_rank_alone() -> None:
    alone = {"input_address": "tcp://127.0.0.1:9", "output_address": "tcp://127.0.0.1:10"}
    client = make_async_mp_client(
        alone, data_parallel_size=3, data_parallel_external_lb=True, data_parallel_rank=2
    )
    assert type(client) is DPAsyncMPClient
    client.close()
