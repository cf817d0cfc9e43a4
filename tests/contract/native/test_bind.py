"""Clients that bind, engines that dial in: real sockets, stub engines in processes."""

import asyncio
import os
import signal
import time
from typing import Any

import pytest
import zmq

from enginecore_client import (
    AddressError,
    AsyncMPClient,
    ClientAddresses,
    EngineCoreRequest,
    EngineDeadError,
    FinishReason,
    NativeOptions,
    OutputKind,
    RequestTimeoutError,
    SamplingParams,
    StartupTimeoutError,
    SyncMPClient,
)
from enginecore_client.ops import CollectiveRpc
from enginecore_client.testing import FakeEngine
from enginecore_wire.outputs import ENGINE_CORE_DEAD
from support.eventually import eventually, eventually_async
from support.native_engines import FREE, Handshakes, stub_engine

PROMPT = [7, 11, 13]
SHORT = SamplingParams(max_tokens=5, output_kind=OutputKind.DELTA)
LONG = SamplingParams(max_tokens=2000, output_kind=OutputKind.DELTA)
SLOW = ("--tokens", "2000", "--token-seconds", "0.01")


def tokens(client: SyncMPClient, **options: Any) -> list[int]:
    return [t for o in client.generate(PROMPT, SHORT, **options) for t in o.new_token_ids]


async def tokens_async(client: AsyncMPClient, **options: Any) -> list[int]:
    return [t async for o in client.generate(PROMPT, SHORT, **options) for t in o.new_token_ids]


def test_sync_client_serves_an_engine_that_dials_in(bound, start_engine) -> None:
    start_engine()
    with SyncMPClient(bound) as client:
        assert tokens(client) == [7, 11, 13, 7, 11]
        assert client.get_supported_tasks() == ["generate"]
        assert client.is_sleeping() is False
        client.add_request(EngineCoreRequest("q", PROMPT, sampling_params=SHORT))
        got: list[int] = []
        reason = None
        while reason is None:
            for output in client.get_output(timeout=10).outputs:
                got += output.new_token_ids
                reason = output.finish_reason
        assert (got, reason) == ([7, 11, 13, 7, 11], FinishReason.LENGTH)
        assert client.core_engines == [b"\x00\x00"]


async def test_client_tells_the_ports_it_got() -> None:
    async with asyncio.timeout(30):
        client = AsyncMPClient(FREE, data_parallel_size=2)
        addresses = client.client_addresses
        assert addresses is not None
        assert not addresses.input_address[0].endswith(":0")
        with Handshakes(addresses) as handshakes, \
             stub_engine(handshakes.port, 0), stub_engine(handshakes.port, 1):  # fmt: skip
            async with client:
                for rank in (0, 1):
                    assert await tokens_async(client, data_parallel_rank=rank) == [7, 11, 13, 7, 11]
                assert await client.is_sleeping_async() is False
                assert client.core_engines == [b"\x00\x00", b"\x01\x00"]


async def test_round_trip_over_ipv6() -> None:
    wildcard = {"input_address": "tcp://[::1]:0", "output_address": "tcp://[::]:0", "mode": "bind"}
    client = AsyncMPClient(wildcard)
    bound = client.client_addresses
    assert bound is not None
    port = bound.output_address[0].rpartition(":")[2]
    dialled = ClientAddresses(bound.input_address, (f"tcp://[::1]:{port}",))
    with Handshakes(dialled) as handshakes, stub_engine(handshakes.port):
        async with client:
            assert await tokens_async(client) == [7, 11, 13, 7, 11]


def test_ranks_need_not_begin_with_zero(bound, start_engine) -> None:
    for rank in (3, 300):
        start_engine(rank)
    with SyncMPClient(bound, engine_ranks=[3, 300]) as client:
        assert client.core_engines == [b"\x03\x00", b"\x2c\x01"]
        for rank in (3, 300):
            stream = client.generate(PROMPT, SHORT, data_parallel_rank=rank)
            assert [t for o in stream for t in o.new_token_ids] == [7, 11, 13, 7, 11]
            assert stream.engine == rank


def test_startup_deadline_names_rank_and_phase(bound, start_engine) -> None:
    start_engine(0)
    with pytest.raises(StartupTimeoutError, match=r"rank 1 at ipc://.*not dialled in") as caught:
        SyncMPClient(bound, data_parallel_size=2, ready_timeout=1.5)
    assert "rank 0" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["ipc", "tcp"])
async def test_kill_9_of_one_engine_ends_its_requests_alone(bound, scheme: str) -> None:
    client = AsyncMPClient(bound if scheme == "ipc" else FREE, data_parallel_size=2)
    assert client.client_addresses is not None
    with Handshakes(client.client_addresses) as handshakes, \
         stub_engine(handshakes.port, 0, *SLOW), \
         stub_engine(handshakes.port, 1, *SLOW) as victim:  # fmt: skip
        async with client:
            streams = [client.generate(PROMPT, LONG, data_parallel_rank=r) for r in (0, 1)]
            for stream in streams:
                await anext(stream)
            call = asyncio.create_task(client.call_utility_async("is_sleeping", engine=1))
            await call
            os.kill(victim.process.pid, signal.SIGKILL)
            killed = time.monotonic()
            with pytest.raises(EngineDeadError) as caught:
                async for _ in streams[1]:
                    pass
            assert time.monotonic() - killed < 1.0
            assert caught.value.engine == 1
            for _ in range(20):
                await anext(streams[0])
            assert not client.engine_dead
            assert await tokens_async(client) == [7, 11, 13, 7, 11]
            await streams[0].aclose()


def test_last_word_of_an_engine_is_known_as_its_own(bound, start_engine) -> None:
    for rank in (0, 1, 2):
        start_engine(rank, *SLOW)
    with SyncMPClient(bound, data_parallel_size=3) as client:
        streams = [client.generate(PROMPT, LONG, data_parallel_rank=r) for r in range(3)]
        for stream in streams:
            next(stream)
        with pytest.raises(EngineDeadError, match="died"):
            client.call_utility("collective_rpc", "dead", None, [], {}, engine=1, timeout=10)
        with pytest.raises(EngineDeadError, match="died") as caught:
            for _ in streams[1]:
                pass
        assert caught.value.engine == 1
        for rank in (0, 2):
            for _ in range(20):
                next(streams[rank])
            streams[rank].close()


def test_fault_23247_next_process_of_a_rank_takes_over(bound, start_engine) -> None:
    first = start_engine(1)
    start_engine(0)
    with SyncMPClient(bound, data_parallel_size=2) as client:
        for _ in range(3):
            os.kill(first.process.pid, signal.SIGKILL)
            with pytest.raises(EngineDeadError):
                client.get_output(timeout=10)
            first = start_engine(1)
            again = {"data_parallel_rank": 1, "retry": True, "deadline": 20}
            assert tokens(client, **again) == [7, 11, 13, 7, 11]


def test_fault_23247_second_engine_of_a_rank_is_reported_and_the_first_kept(
    bound, start_engine, caplog
) -> None:
    first = start_engine(0, *SLOW)
    with SyncMPClient(bound) as client:
        stream = client.generate(PROMPT, LONG)
        next(stream)
        start_engine(0)
        eventually(lambda: "a rank in use" in caplog.text, "a report of the second engine")
        for _ in range(20):
            next(stream)
        stream.close()
        os.kill(first.process.pid, signal.SIGKILL)
        with pytest.raises(EngineDeadError):
            client.get_output(timeout=10)
        start_engine(0)
        assert tokens(client, retry=True, deadline=20) == [7, 11, 13, 7, 11]


def test_engine_of_another_rank_is_reported_and_ignored(bound, start_engine, caplog) -> None:
    start_engine(0)
    with SyncMPClient(bound) as client:
        start_engine(5)
        eventually(lambda: "0500 dialled in" in caplog.text, "a report of the stranger")
        assert tokens(client) == [7, 11, 13, 7, 11]


def test_last_word_of_a_stranger_ends_nothing(bound, start_engine, caplog) -> None:
    start_engine(0, *SLOW)
    with SyncMPClient(bound) as client, zmq.Context() as context:
        stream = client.generate(PROMPT, LONG)
        next(stream)
        with context.socket(zmq.PUSH) as stranger:
            stranger.connect(bound["output_address"])
            stranger.send(ENGINE_CORE_DEAD)
            eventually(lambda: "or a stranger" in caplog.text, "a report of the stranger")
        for _ in range(20):
            next(stream)
        stream.close()


async def test_frozen_engine_is_given_up_and_used_again() -> None:
    client = AsyncMPClient(FREE)
    assert client.client_addresses is not None
    with Handshakes(client.client_addresses) as handshakes, \
         stub_engine(handshakes.port, 0, *SLOW) as engine:  # fmt: skip
        async with client:
            stream = client.generate(PROMPT, LONG)
            await anext(stream)
            os.kill(engine.process.pid, signal.SIGSTOP)
            with pytest.raises(EngineDeadError):
                async for _ in stream:
                    pass
            os.kill(engine.process.pid, signal.SIGCONT)
            again = client.generate(PROMPT, SHORT, retry=True, deadline=20)
            got = [t async for o in again for t in o.new_token_ids]
            assert got == [7, 11, 13, 7, 11]
            journal = await client.collective_rpc_async("journal")
            unfinished = [ids for what, ids in journal[0] if what == "abort"]
            assert len(unfinished) == 1


async def test_fault_39863_wedged_engine_is_found_by_probes() -> None:
    client = AsyncMPClient(FREE, native=NativeOptions(probe_seconds=1.0))
    assert client.client_addresses is not None
    with Handshakes(client.client_addresses) as handshakes, \
         stub_engine(handshakes.port, 0, "--ignore"):  # fmt: skip
        async with client:
            stream = asyncio.create_task(anext(client.generate(PROMPT, LONG)))

            async def probed() -> bool:
                """Say whether three probes came; asking is an answer, so it is done rarely."""
                (journal,) = await client.collective_rpc_async("journal")
                return journal.count(["utility", "is_sleeping"]) >= 3

            await eventually_async(probed, "three probes", interval=0.8)
            assert not stream.done()  # slow, but it answers
            with pytest.raises(RequestTimeoutError):
                await client.call_async(CollectiveRpc("hang"), timeout=0.2)
            with pytest.raises(EngineDeadError, match="silent"):
                await stream


def test_address_in_use(bound) -> None:
    client = AsyncMPClient(bound)
    with pytest.raises(AddressError, match="another process listens there"):
        AsyncMPClient(bound)
    client.close()


async def test_address_that_cannot_be_bound() -> None:
    for address, text in [
        ("tcp://203.0.113.1:5557", "no interface of this machine has that address"),
        ("tcp://nowhere.invalid:5557", "give an IP of this machine"),
        (f"ipc:///tmp/{'x' * 120}", "cannot be bound"),
    ]:
        for key in ("input_address", "output_address"):
            with pytest.raises(AddressError, match=text):
                AsyncMPClient(FREE | {key: address})


async def test_fault_28498_many_clients_bind_at_once() -> None:
    clients = [AsyncMPClient(FREE) for _ in range(50)]
    used = {client.client_addresses.input_address for client in clients if client.client_addresses}
    assert len(used) == 50
    for client in clients:
        await client.aclose()


def test_next_client_takes_over_engines_that_run(bound, start_engine) -> None:
    for rank in (0, 1):
        start_engine(rank, *SLOW)
    with SyncMPClient(bound, data_parallel_size=2) as client:
        facts = client.engine_facts[0]
        next(client.generate(PROMPT, LONG))
    started = time.monotonic()
    again = NativeOptions(running_facts=facts)
    with SyncMPClient(bound, data_parallel_size=2, native=again, ready_timeout=20) as client:
        assert time.monotonic() - started < 5
        for rank in (0, 1):
            assert tokens(client, data_parallel_rank=rank) == [7, 11, 13, 7, 11]


@pytest.mark.parametrize("kind", ["sync", "async", "collected"])
async def test_who_leaves_has_its_requests_forgotten(kind: str) -> None:
    """An engine that dials in outlives its clients, and would compute to the end for nobody."""
    with FakeEngine(token_seconds=0.01, tokens=2000) as engine:
        place: dict[str, Any] = {"native": engine.native, "ready_timeout": 20}
        if kind == "async":
            async with AsyncMPClient(engine.client_addresses, **place) as awaited:
                async for _ in awaited.generate(PROMPT, LONG):
                    await awaited.add_request_async(queued())
                    break
                await eventually_async(lambda: len(engine.core.adds) == 2)
        else:
            client = SyncMPClient(engine.client_addresses, **place)
            client.add_request(queued())
            next(client.generate(PROMPT, LONG))
            if kind == "sync":
                client.close()
            del client
        names = {request.request_id for request in engine.core.adds}
        assert len(names) == 2
        await eventually_async(lambda: set(engine.core.aborts) == names, "the engine has forgotten")


def queued() -> EngineCoreRequest:
    return EngineCoreRequest("queued", PROMPT, sampling_params=LONG)
