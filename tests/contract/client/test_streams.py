"""Streams through a real engine server, where the contract suite has no eye for them."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from enginecore_client import (
    AsyncMPClient,
    EngineCoreRequest,
    FinishReason,
    RequestTimeoutError,
    SyncMPClient,
)
from support.eventually import eventually, eventually_async
from support.faces import params
from support.pod import Pod, client_addresses

PROMPT = [7, 11, 13]
LONG = params(2000)


def expected(count: int) -> list[int]:
    return [PROMPT[i % len(PROMPT)] for i in range(count)]


async def collect(stream) -> tuple[list[int], FinishReason | None]:
    tokens, reason = [], None
    async for output in stream:
        tokens += output.new_token_ids
        reason = output.finish_reason
    return tokens, reason


def unfinished(client: AsyncMPClient | SyncMPClient) -> int:
    return client._driver.core.unfinished


async def test_first_await_connects(pod: Pod) -> None:
    client = AsyncMPClient(client_addresses([pod]))
    assert await collect(client.generate(PROMPT, params(3))) == (
        expected(3),
        FinishReason.LENGTH,
    )
    await client.aclose()


def test_get_output_has_no_last_output_of_what_was_aborted(pod: Pod) -> None:
    with SyncMPClient(client_addresses([pod])) as client:
        for name, count in (("long", 2000), ("short", 40)):
            client.add_request(EngineCoreRequest(name, PROMPT, sampling_params=params(count)))
        while "long" not in {output.request_id for output in client.get_output(5).outputs}:
            pass
        waited_for = {"long", "short"} - set(client.abort_requests(["long"]))
        while waited_for:
            for output in client.get_output(5).outputs:
                if output.finish_reason is not None:
                    waited_for.remove(output.request_id)
        with pytest.raises(RequestTimeoutError):
            client.get_output(0.2)


async def test_cancelling_the_reader_aborts(pod: Pod) -> None:
    async with AsyncMPClient(client_addresses([pod])) as client:
        task = asyncio.create_task(collect(client.generate(PROMPT, LONG)))
        await asyncio.sleep(0)  # a task that never ran would not have read
        await eventually_async(lambda: pod.status().in_flight == 1, "it runs")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert unfinished(client) == 0
        await eventually_async(lambda: pod.status().in_flight == 0, "the engine forgot")


@pytest.mark.parametrize("leave", ["break", "close", "drop"])
def test_leaving_a_sync_stream_aborts(pod: Pod, leave: str) -> None:
    with SyncMPClient(client_addresses([pod])) as client:
        stream = client.generate(PROMPT, LONG)
        next(stream)
        if leave == "break":
            with stream:
                for _ in stream:
                    break
        elif leave == "close":
            stream.close()
        del stream
        eventually(lambda: unfinished(client) == 0)
        eventually(lambda: pod.status().in_flight == 0, "the engine forgot")


async def test_max_tokens_none_means_the_rest_of_the_context(start_pod) -> None:
    pod = start_pod("--tokens", "100", "--max-model-len", "10").wait_ready()
    async with AsyncMPClient(client_addresses([pod])) as client:
        tokens, reason = await collect(client.generate(PROMPT, params(None)))
        assert (len(tokens), reason) == (7, FinishReason.LENGTH)


def test_threads_that_share_a_stream_all_reach_its_end(pod: Pod) -> None:
    with SyncMPClient(client_addresses([pod])) as client, ThreadPoolExecutor(3) as threads:
        stream = client.generate(PROMPT, params(50, n=2, temperature=1.0))
        readers = [threads.submit(list, stream) for _ in range(3)]
        outputs = [output for reader in readers for output in reader.result(30)]
        assert sum(len(output.new_token_ids) for output in outputs) == 100


async def test_tasks_that_share_a_stream_all_reach_its_end(pod: Pod) -> None:
    async with AsyncMPClient(client_addresses([pod])) as client:
        stream = client.generate(PROMPT, params(50))
        async with asyncio.timeout(30):
            readers = await asyncio.gather(*(collect(stream) for _ in range(3)))
        assert sum(len(tokens) for tokens, _ in readers) == 50
        stream = client.generate(PROMPT, LONG)
        tasks = [asyncio.create_task(collect(stream)) for _ in range(3)]
        await eventually_async(lambda: pod.status().in_flight == 1, "it runs")
        tasks[0].cancel()
        async with asyncio.timeout(30):
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(end) for end in ended] == [asyncio.CancelledError, tuple, tuple]
