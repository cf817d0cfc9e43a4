"""AsyncMPClient on asyncio's own loop and on uvloop."""

import asyncio
import gc
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from enginecore_client import (
    AsyncMPClient,
    ClientClosedError,
    EngineDeadError,
    FinishReason,
    OutputKind,
    SamplingParams,
)
from support.eventually import eventually, eventually_async
from support.pod import Pod, client_addresses
from support.protocol_peer import ProtocolPeer

PROMPT = [7, 11, 13]
PARAMS = SamplingParams(max_tokens=3, output_kind=OutputKind.DELTA)
LONG = SamplingParams(max_tokens=2000, output_kind=OutputKind.DELTA)

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Run a coroutine as `asyncio.run` does, on a loop of each kind."""

    def run_on_new_loop(work: Coroutine[Any, Any, Any]) -> Any:
        with asyncio.Runner(loop_factory=request.param) as runner:
            return runner.run(work)

    return run_on_new_loop


async def tokens(client: AsyncMPClient, params: SamplingParams = PARAMS) -> list[int]:
    return [t async for o in client.generate(PROMPT, params) for t in o.new_token_ids]


def test_streams_calls_and_aborts(run: Run, pod: Pod) -> None:
    async def use() -> None:
        async with AsyncMPClient(client_addresses([pod])) as client:
            assert await client.get_supported_tasks_async() == ["generate"]
            several = await asyncio.gather(*(tokens(client) for _ in range(50)))
            assert several == [PROMPT] * 50
            stream = client.generate(PROMPT, LONG, "long")
            await anext(stream)
            await client.abort_requests_async(["long"])
            assert [o.finish_reason async for o in stream][-1] is FinishReason.ABORT
            reader = asyncio.create_task(tokens(client, LONG))
            await eventually_async(lambda: pod.status().in_flight == 1, "it runs")
            reader.cancel()
            await asyncio.wait([reader])
            await eventually_async(lambda: pod.status().in_flight == 0, "the engine forgot")

    run(use())


def test_after_its_loop_was_left(run: Run, peer: ProtocolPeer) -> None:
    client = AsyncMPClient(peer.addresses)
    for _ in range(3):
        assert run(tokens(client)) == PROMPT
    assert len({hello.nonce for hello in peer.hellos}) == 1
    client.close()
    with pytest.raises(ClientClosedError):
        run(tokens(client))


def test_dropped_on_its_loop_and_after_it(run: Run, peer: ProtocolPeer) -> None:
    async def drop() -> None:
        client = AsyncMPClient(peer.addresses)
        assert await tokens(client) == PROMPT
        del client
        gc.collect()

    async def keep() -> AsyncMPClient:
        client = AsyncMPClient(peer.addresses)
        assert await tokens(client) == PROMPT
        return client

    run(drop())
    eventually(lambda: peer.byes == 1, "BYE")
    kept = run(keep())
    del kept
    gc.collect()
    eventually(lambda: peer.byes == 2, "BYE")


def test_a_death_is_told_within_its_budget(run: Run, peer: ProtocolPeer) -> None:
    peer.streaming = False

    async def use() -> None:
        async with AsyncMPClient(peer.addresses) as client:
            reader = asyncio.create_task(tokens(client))
            await eventually_async(lambda: len(peer.adds) == 1)
            peer.die()
            with pytest.raises(EngineDeadError):
                await asyncio.wait_for(reader, 1.0)

    run(use())


def test_a_loop_each_in_threads(run: Run, peer: ProtocolPeer) -> None:
    results: list[list[int]] = []

    async def use() -> None:
        async with AsyncMPClient(peer.addresses) as client:
            for _ in range(10):
                results.append(await tokens(client))

    threads = [threading.Thread(target=lambda: run(use())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [PROMPT] * 30


def test_closed_by_another_thread_while_its_loop_runs(run: Run, peer: ProtocolPeer) -> None:
    peer.streaming = False

    async def use() -> None:
        client = AsyncMPClient(peer.addresses)
        await client.connect()
        closer = threading.Thread(target=client.shutdown)
        reader = asyncio.create_task(client.get_output_async())
        await asyncio.sleep(0)
        closer.start()
        with pytest.raises(ClientClosedError):
            await asyncio.wait_for(reader, 5)
        closer.join()

    run(use())
