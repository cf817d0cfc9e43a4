"""Cancelled at every await, interrupted, on several loops: the client goes on and keeps nothing."""

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from enginecore_client import (
    AsyncMPClient,
    ClientClosedError,
    EngineCoreRequest,
    OutputKind,
    SamplingParams,
    SyncMPClient,
)
from support.eventually import eventually, eventually_async
from support.protocol_peer import ProtocolPeer

PROMPT = [7, 11, 13]
PARAMS = SamplingParams(max_tokens=3, output_kind=OutputKind.DELTA)
LONG = SamplingParams(max_tokens=2000, output_kind=OutputKind.DELTA)
QUICK_TURNS = 20
"""Turns of the loop that are not waited for; later ones take a millisecond each."""

MOST_TURNS = 40
"""More turns than any of the operations takes until it waits for the engine."""

Operation = Callable[[AsyncMPClient], Awaitable[Any]]


@pytest.fixture
def peer(peer: ProtocolPeer) -> ProtocolPeer:
    peer.results = {"is_sleeping": False}
    return peer


async def tokens(client: AsyncMPClient, params: SamplingParams = PARAMS) -> list[int]:
    return [t async for o in client.generate(PROMPT, params) for t in o.new_token_ids]


async def add(client: AsyncMPClient) -> None:
    await client.add_request_async(EngineCoreRequest("added", PROMPT, sampling_params=LONG))


OPERATIONS: dict[str, Operation] = {
    "connect": lambda client: client.connect(),
    "generate": lambda client: tokens(client, LONG),
    "add_request": add,
    "get_output": lambda client: client.get_output_async(),
    "abort_requests": lambda client: client.abort_requests_async(["added"]),
    "call": lambda client: client.is_sleeping_async(),
    "call_utility": lambda client: client.call_utility_async("is_sleeping"),
}


async def cancel_after(turns: int, client: AsyncMPClient, operation: Operation) -> None:
    """Start an operation, let the loop turn so often, cancel it."""

    async def run() -> Any:
        return await operation(client)

    task = asyncio.create_task(run())
    for turn in range(turns):
        await asyncio.sleep(0 if turn < QUICK_TURNS else 0.001)
    task.cancel()
    await asyncio.wait([task], timeout=10)
    assert task.done()
    if not task.cancelled():
        task.result()


def books(client: AsyncMPClient | SyncMPClient) -> tuple[int, dict[int, Any]]:
    return client._driver.core.unfinished, client.utility_results


@pytest.mark.parametrize("connected", [False, True])
@pytest.mark.parametrize("name", OPERATIONS)
async def test_cancelled_at_every_await(peer: ProtocolPeer, name: str, connected: bool) -> None:
    peer.streaming = False
    client = AsyncMPClient(peer.addresses)
    try:
        for turns in range(MOST_TURNS):
            if connected:
                await client.connect()
                peer.answering = name == "connect"
            await cancel_after(turns, client, OPERATIONS[name])
            peer.answering = True
            await client.abort_requests_async(["added"])
            assert books(client) == (0, {})
            if not connected:
                await client.aclose()
                client = AsyncMPClient(peer.addresses)
        assert await client.is_sleeping_async() is False
        peer.streaming = True
        assert await tokens(client) == PROMPT
    finally:
        await client.aclose()
    await eventually_async(lambda: not peer.sessions, "BYE")


async def test_a_cancelled_reader_loses_no_output(peer: ProtocolPeer) -> None:
    async with AsyncMPClient(peer.addresses) as client:
        request = EngineCoreRequest(
            "a",
            PROMPT,
            sampling_params=SamplingParams(max_tokens=200, output_kind=OutputKind.DELTA),
        )
        await client.add_request_async(request)
        seen: list[int] = []
        finished = False
        while not finished:
            reader = asyncio.create_task(client.get_output_async())
            await asyncio.sleep(0)
            reader.cancel()
            await asyncio.wait([reader])
            outputs = [] if reader.cancelled() else reader.result().outputs
            if not outputs:
                outputs = (await client.get_output_async()).outputs
            for output in outputs:
                seen += output.new_token_ids
                finished = output.finish_reason is not None
        assert seen == [PROMPT[i % 3] for i in range(200)]


async def test_closing_is_not_undone_by_a_cancellation(peer: ProtocolPeer) -> None:
    for turns in range(4):
        client = AsyncMPClient(peer.addresses)
        await client.connect()
        task = asyncio.create_task(client.aclose())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        await client.aclose()
        with pytest.raises(ClientClosedError):
            await client.is_sleeping_async()


async def test_it_begins_on_the_loop_that_makes_it(peer: ProtocolPeer) -> None:
    client = AsyncMPClient(peer.addresses)
    await eventually_async(lambda: len(peer.hellos) == 2, "HELLO before anybody awaits the client")
    assert await tokens(client) == PROMPT
    await client.aclose()


def test_it_begins_lazily_without_a_loop(peer: ProtocolPeer) -> None:
    client = AsyncMPClient(peer.addresses)
    assert client.resources.loop is None
    assert asyncio.run(tokens(client)) == PROMPT
    client.close()


def test_two_loops_at_once_have_a_client_each(peer: ProtocolPeer) -> None:
    results: list[list[int]] = []

    async def use() -> None:
        async with AsyncMPClient(peer.addresses) as client:
            for _ in range(20):
                results.append(await tokens(client))

    threads = [threading.Thread(target=lambda: asyncio.run(use())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [PROMPT] * 60


def test_a_stopped_loop_gives_the_client_up_and_gets_it_back(peer: ProtocolPeer) -> None:
    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    client = AsyncMPClient(peer.addresses)
    for loop in (first, second, first, second):
        assert loop.run_until_complete(tokens(client)) == PROMPT
    second.run_until_complete(client.aclose())
    first.close()
    second.close()
    assert len({hello.nonce for hello in peer.hellos}) == 1


async def test_who_does_not_read_holds_up_nobody(peer: ProtocolPeer) -> None:
    async with AsyncMPClient(peer.addresses) as client:
        unread = [client.generate(PROMPT, LONG) for _ in range(20)]
        await client.add_request_async(
            EngineCoreRequest("never read", PROMPT, sampling_params=LONG)
        )
        await anext(unread[0])
        for _ in range(20):
            assert await asyncio.wait_for(tokens(client), 5) == PROMPT
        assert await client.is_sleeping_async() is False


@pytest.fixture
def interrupt() -> Any:
    """Return what presses Ctrl-C in the main thread once somebody waits there."""
    timers: list[threading.Timer] = []

    def press(seconds: float = 0.2) -> None:
        main = threading.main_thread().ident
        timer = threading.Timer(seconds, signal.pthread_kill, [main, signal.SIGINT])
        timers.append(timer)
        timer.start()

    # A shell starts background jobs with SIGINT ignored, and Python then raises nothing.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield press
    for timer in timers:
        timer.join()
    signal.signal(signal.SIGINT, before)


WAITING: dict[str, Callable[[SyncMPClient], Any]] = {
    "get_output": lambda client: client.get_output(),
    "get_output with a timeout": lambda client: client.get_output(30),
    "generate": lambda client: list(client.generate(PROMPT, LONG)),
    "call": lambda client: client.is_sleeping(),
}


@pytest.mark.parametrize("name", WAITING)
def test_ctrl_c_leaves_the_client_usable(peer: ProtocolPeer, interrupt: Any, name: str) -> None:
    with SyncMPClient(peer.addresses) as client:
        peer.streaming = peer.answering = False
        interrupt()
        try:
            WAITING[name](client)
        except KeyboardInterrupt as error:
            error.__traceback__ = None  # which keeps the stream
        else:
            pytest.fail("nothing was raised")
        eventually(lambda: books(client) == (0, {}), "nothing is left")
        peer.streaming = peer.answering = True
        assert [t for o in client.generate(PROMPT, PARAMS) for t in o.new_token_ids] == PROMPT


def test_ctrl_c_while_connecting_leaves_nothing(peer: ProtocolPeer, interrupt: Any) -> None:
    peer.ready = None
    interrupt()
    with pytest.raises(KeyboardInterrupt):
        SyncMPClient(peer.addresses, ready_timeout=30)
