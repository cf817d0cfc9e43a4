"""Requests and calls through a real engine server: what a caller sees, sync and async."""

import asyncio
import random

import pytest

from enginecore_client import (
    AsyncMPClient,
    EngineCoreRequest,
    FinishReason,
    RequestRejectedError,
    RequestTimeoutError,
    SamplingParams,
    SyncMPClient,
    UtilityError,
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


@pytest.mark.parametrize("count", [1, 2, 50])
async def test_async_stream(pod: Pod, count: int) -> None:
    async with AsyncMPClient(client_addresses([pod])) as client:
        stream = client.generate(PROMPT, params(count), "mine")
        assert await collect(stream) == (expected(count), FinishReason.LENGTH)
        assert unfinished(client) == 0


@pytest.mark.parametrize("count", [1, 2, 50])
def test_sync_stream(pod: Pod, count: int) -> None:
    with SyncMPClient(client_addresses([pod])) as client:
        outputs = list(client.generate(PROMPT, params(count), "mine"))
        assert [t for o in outputs for t in o.new_token_ids] == expected(count)
        assert {o.request_id for o in outputs} == {"mine"}
        assert unfinished(client) == 0


async def test_first_await_connects(pod: Pod) -> None:
    client = AsyncMPClient(client_addresses([pod]))
    assert await collect(client.generate(PROMPT, params(3))) == (
        expected(3),
        FinishReason.LENGTH,
    )
    await client.aclose()


async def test_many_streams_share_one_connection(pod: Pod) -> None:
    async with AsyncMPClient(client_addresses([pod])) as client:
        lengths = [random.Random(i).randrange(1, 40) for i in range(100)]
        streams = [client.generate(PROMPT, params(n)) for n in lengths]
        results = await asyncio.gather(*map(collect, streams))
        assert results == [(expected(n), FinishReason.LENGTH) for n in lengths]


async def test_async_get_output_maps_ids_back(pod: Pod) -> None:
    async with AsyncMPClient(client_addresses([pod])) as client:
        for name in ("a", "b"):
            request = EngineCoreRequest(name, PROMPT, sampling_params=params(4))
            await client.add_request_async(request)
        tokens: dict[str, list[int]] = {"a": [], "b": []}
        while sum(map(len, tokens.values())) < 8:
            outputs = await client.get_output_async()
            assert outputs.engine_index == 0
            for output in outputs.outputs:
                tokens[output.request_id] += output.new_token_ids
        assert tokens == {"a": expected(4), "b": expected(4)}


def test_sync_get_output_and_duplicate_names(pod: Pod) -> None:
    with SyncMPClient(client_addresses([pod])) as client:
        client.add_request(EngineCoreRequest("a", PROMPT, sampling_params=LONG))
        with pytest.raises(RequestRejectedError) as caught:
            client.add_request(EngineCoreRequest("a", PROMPT, sampling_params=LONG))
        assert caught.value.field == "request_id"
        assert client.get_output(5).outputs[0].request_id == "a"
        assert client.abort_requests(["a", "unknown"]) == ["a"]
        assert unfinished(client) == 0
        client.add_request(EngineCoreRequest("a", PROMPT, sampling_params=params(1)))
        seen = []
        while not seen or seen[-1].finish_reason is None:
            seen += client.get_output(5).outputs
        assert seen[-1].finish_reason is FinishReason.LENGTH


async def test_abort_ends_the_stream_and_the_engine_forgets(pod: Pod) -> None:
    async with AsyncMPClient(client_addresses([pod])) as client:
        stream = client.generate(PROMPT, LONG, "gone")
        first = await anext(stream)
        assert first.new_token_ids == [7]
        assert await client.abort_requests_async(["gone"]) == ["gone"]
        tail = [output async for output in stream]
        assert tail[-1].finish_reason is FinishReason.ABORT
        assert unfinished(client) == 0
        await eventually_async(lambda: pod.status().in_flight == 0, "the engine forgot")


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


async def test_abort_after_the_end_changes_nothing(pod: Pod) -> None:
    async with AsyncMPClient(client_addresses([pod])) as client:
        stream = client.generate(PROMPT, params(2), "done")
        assert await collect(stream) == (expected(2), FinishReason.LENGTH)
        assert await client.abort_requests_async(["done", "never there"]) == []
        again = client.generate(PROMPT, params(2), "done")
        assert await collect(again) == (expected(2), FinishReason.LENGTH)


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


async def test_deadline_ends_the_request(pod: Pod) -> None:
    async with AsyncMPClient(client_addresses([pod])) as client:
        stream = client.generate(PROMPT, LONG, "slow", deadline=0.2)
        with pytest.raises(RequestTimeoutError, match="'slow' was not finished") as caught:
            await collect(stream)
        assert caught.value.request_ids == ("slow",)
        assert unfinished(client) == 0
        await eventually_async(lambda: pod.status().in_flight == 0, "the engine forgot")


async def test_slow_reader_holds_up_nobody(pod: Pod) -> None:
    async with AsyncMPClient(client_addresses([pod])) as client:
        slow = client.generate(PROMPT, params(40))
        await anext(slow)
        quick = client.generate(PROMPT, params(40))
        assert await collect(quick) == (expected(40), FinishReason.LENGTH)
        tokens, reason = await collect(slow)
        assert (tokens, reason) == (expected(40)[1:], FinishReason.LENGTH)


async def test_utility_calls(pod: Pod) -> None:
    async with AsyncMPClient(client_addresses([pod])) as client:
        assert await client.get_supported_tasks_async() == ["generate"]
        assert await client.is_sleeping_async() is False
        assert await client.reset_prefix_cache_async() is True
        assert await client.list_loras_async() == set()
        assert await client.collective_rpc_async("echo", args=("x",)) == ["x"]
        with pytest.raises(UtilityError, match="no method sleep") as caught:
            await client.sleep_async()
        assert caught.value.engine == 0
        with pytest.raises(RequestRejectedError, match="not among the calls") as refused:
            await client.call_utility_async("shutdown")
        assert refused.value.field == "method"
        assert await client.call_utility_async("is_sleeping") is False


def test_sync_utility_calls(pod: Pod) -> None:
    with SyncMPClient(client_addresses([pod])) as client:
        assert client.get_supported_tasks() == ["generate"]
        assert client.call_utility("is_scheduler_paused") is False
        with pytest.raises(UtilityError, match="no method pin_lora"):
            client.pin_lora(1)


async def test_cancelled_call_leaves_nothing(pod: Pod) -> None:
    async with AsyncMPClient(client_addresses([pod])) as client:
        task = asyncio.create_task(client.call_utility_async("is_sleeping"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await client.is_sleeping_async() is False


REJECTED = [
    ({"prompt_token_ids": [1, 1000]}, "prompt_token_ids"),
    ({"prompt_token_ids": []}, "prompt_token_ids"),
    ({"prompt_token_ids": [1] * 3000}, "prompt_token_ids"),
    ({"prompt_token_ids": ["a"]}, "prompt_token_ids"),
    ({"sampling_params": SamplingParams(temperature=-1.0)}, "temperature"),
    ({"sampling_params": SamplingParams(max_tokens=0)}, "max_tokens"),
    ({"sampling_params": SamplingParams(top_p=7.0)}, "top_p"),
    ({"data_parallel_rank": 5}, "data_parallel_rank"),
]


@pytest.mark.parametrize(("fields", "field"), REJECTED, ids=[field for _, field in REJECTED])
async def test_wrong_requests_are_refused_before_sending(pod: Pod, fields, field: str) -> None:
    async with AsyncMPClient(client_addresses([pod])) as client:
        arguments = {"prompt_token_ids": PROMPT, "sampling_params": LONG} | fields
        with pytest.raises(RequestRejectedError) as caught:
            await collect(client.generate(**arguments))
        assert field in caught.value.field
        assert field in str(caught.value)
        assert unfinished(client) == 0
        assert await client.is_sleeping_async() is False


async def test_max_tokens_none_means_the_rest_of_the_context(start_pod) -> None:
    pod = start_pod("--tokens", "100", "--max-model-len", "10").wait_ready()
    async with AsyncMPClient(client_addresses([pod])) as client:
        tokens, reason = await collect(client.generate(PROMPT, params(None)))
        assert (len(tokens), reason) == (7, FinishReason.LENGTH)
