"""What is unfinished when its loop is left: it goes on on the next one, or ends there."""

import asyncio
from collections.abc import Iterator

import pytest

from enginecore_client import AsyncMPClient, OutputKind, SamplingParams
from enginecore_client.testing import FakeEngine
from support.eventually import eventually_async

PROMPT = [7, 11, 13]
SHORT = SamplingParams(max_tokens=3, output_kind=OutputKind.DELTA)
LONG = SamplingParams(max_tokens=2000, output_kind=OutputKind.DELTA)


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    with FakeEngine(token_seconds=0.005) as running:
        yield running


@pytest.fixture
def client(engine: FakeEngine) -> Iterator[AsyncMPClient]:
    client = AsyncMPClient(engine.client_addresses, native=engine.native)
    yield client
    client.close()


async def begun(client: AsyncMPClient) -> list[object]:
    stream = client.generate(PROMPT, LONG)
    await anext(stream)
    return [stream]


@pytest.mark.parametrize("closes", [True, False], ids=["closed", "stopped"])
def test_a_stream_dropped_between_two_loops_is_aborted(
    engine: FakeEngine, client: AsyncMPClient, closes: bool
) -> None:
    loop = asyncio.new_event_loop()
    held = loop.run_until_complete(begun(client))
    if closes:
        loop.close()
    held.clear()

    async def go_on() -> None:
        await client.connect()
        await eventually_async(lambda: engine.core.aborts != [], "the engine was told")
        assert client._driver.core.unfinished == 0

    asyncio.run(go_on())
    loop.close()


def test_a_stream_goes_on_on_the_next_loop(client: AsyncMPClient) -> None:
    (stream,) = asyncio.run(begun(client))

    async def read() -> list[int]:
        return [(await anext(stream)).new_token_ids[0] for _ in range(50)]  # type: ignore[call-overload]

    tokens = asyncio.run(read())
    start = PROMPT.index(tokens[0])
    assert tokens == [PROMPT[(start + i) % 3] for i in range(50)]


def test_who_waited_on_a_closed_loop_holds_up_nobody(
    engine: FakeEngine, client: AsyncMPClient
) -> None:
    async def wait_for_ever() -> list[asyncio.Task[object]]:
        await client.connect()
        engine.freeze()
        stream = client.generate(
            PROMPT, SamplingParams(max_tokens=30, output_kind=OutputKind.DELTA)
        )
        tasks: list[asyncio.Task[object]] = [
            asyncio.ensure_future(waiting)
            for waiting in (
                anext(stream),
                client.is_sleeping_async(),
                client.get_output_async(),
                client._signal.wait(60.0),
            )
        ]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return tasks

    loop = asyncio.new_event_loop()
    tasks = loop.run_until_complete(wait_for_ever())
    loop.close()
    engine.thaw()

    async def go_on() -> list[int]:
        async with asyncio.timeout(10):
            assert await client.is_sleeping_async() is False
            return [t async for o in client.generate(PROMPT, SHORT) for t in o.new_token_ids]

    assert asyncio.run(go_on()) == PROMPT
    assert not any(task.done() for task in tasks)
