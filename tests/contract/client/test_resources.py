"""Sockets, threads and loops: everything ends exactly once, however a client is left.

What a test leaves behind is found by the fixtures in tests/conftest.py.
"""

import asyncio
import gc
import threading
import weakref

import pytest

from enginecore_client import (
    AsyncMPClient,
    ClientClosedError,
    EngineCoreRequest,
    SamplingParams,
    SyncMPClient,
)
from enginecore_client._shell import thread
from support.eventually import eventually, eventually_async
from support.faces import params
from support.protocol_peer import ProtocolPeer

PROMPT = [7, 11, 13]
PARAMS = params(3)


async def tokens(client: AsyncMPClient) -> list[int]:
    return [token async for o in client.generate(PROMPT, PARAMS) for token in o.new_token_ids]


def test_collected_sync_client_ends_its_thread_and_says_bye(peer: ProtocolPeer) -> None:
    client = SyncMPClient(peer.addresses)
    gone = weakref.ref(client)
    del client
    gc.collect()
    assert gone() is None
    eventually(lambda: peer.byes == 1, "BYE")


async def test_collected_async_client_closes_on_its_loop(peer: ProtocolPeer) -> None:
    client = AsyncMPClient(peer.addresses)
    assert await tokens(client) == PROMPT
    gone = weakref.ref(client)
    del client
    gc.collect()
    assert gone() is None
    await asyncio.sleep(0)
    eventually(lambda: peer.byes == 1, "BYE")


def test_fault_57757_async_client_dropped_after_its_loop_was_closed(peer: ProtocolPeer) -> None:
    async def use() -> AsyncMPClient:
        client = AsyncMPClient(peer.addresses)
        assert await tokens(client) == PROMPT
        return client

    client = asyncio.run(use())
    del client
    gc.collect()
    eventually(lambda: peer.byes == 1, "BYE")


def test_async_client_goes_on_in_a_second_run(peer: ProtocolPeer) -> None:
    client = AsyncMPClient(peer.addresses)
    for _ in range(3):
        assert asyncio.run(tokens(client)) == PROMPT
    assert len({hello.nonce for hello in peer.hellos}) == 1
    client.close()


def test_async_client_closed_from_outside_its_loop(peer: ProtocolPeer) -> None:
    client = AsyncMPClient(peer.addresses)
    assert asyncio.run(tokens(client)) == PROMPT
    client.close()
    client.close()
    with pytest.raises(ClientClosedError):
        asyncio.run(tokens(client))


def test_async_client_never_used() -> None:
    client = AsyncMPClient({"input_address": "tcp://[::1]:9", "output_address": "tcp://[::1]:10"})
    del client
    gc.collect()


async def test_async_client_on_two_running_loops(peer: ProtocolPeer) -> None:
    async with AsyncMPClient(peer.addresses) as client:
        caught = await asyncio.to_thread(_run_and_catch, client)
        assert "another running event loop" in str(caught)


def _run_and_catch(client: AsyncMPClient) -> BaseException | None:
    try:
        asyncio.run(client.connect())
    except RuntimeError as error:
        return error
    return None


async def test_closing_ends_everything_pending(peer: ProtocolPeer) -> None:
    peer.streaming = False
    client = AsyncMPClient(peer.addresses)
    await client.connect()
    peer.answering = False
    pending = [
        asyncio.create_task(tokens(client)),
        asyncio.create_task(client.get_output_async()),
        asyncio.create_task(client.get_output_async()),
        asyncio.create_task(client.is_sleeping_async()),
    ]
    await eventually_async(lambda: len(peer.adds) == len(peer.calls) == 1, "all are under way")
    await client.aclose()
    await client.aclose()
    for task in pending:
        with pytest.raises(ClientClosedError):
            await task
    with pytest.raises(ClientClosedError):
        await client.add_request_async(EngineCoreRequest("a", PROMPT, sampling_params=PARAMS))


def test_closing_sync_ends_everything_pending(peer: ProtocolPeer) -> None:
    peer.streaming = False
    client = SyncMPClient(peer.addresses)
    peer.answering = False
    stream = client.generate(PROMPT, PARAMS)
    closer = threading.Timer(0.1, client.close)
    closer.start()
    with pytest.raises(ClientClosedError):
        next(stream)
    with pytest.raises(ClientClosedError):
        client.get_output()
    with pytest.raises(ClientClosedError):
        client.generate(PROMPT, PARAMS)
    closer.join()


def test_many_threads_share_a_sync_client(peer: ProtocolPeer) -> None:
    results: list[list[int]] = []
    with SyncMPClient(peer.addresses) as client:

        def work() -> None:
            for _ in range(20):
                results.append(
                    [t for o in client.generate(PROMPT, PARAMS) for t in o.new_token_ids]
                )

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == [PROMPT] * 160


def test_failed_constructor_leaves_nothing(peer: ProtocolPeer) -> None:
    peer.ready = None
    for _ in range(3):
        with pytest.raises(TimeoutError):
            SyncMPClient(peer.addresses, ready_timeout=0.1)


def test_closed_by_a_signal_while_it_is_in_use_it_ends_afterwards(
    peer: ProtocolPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread, "_JOIN_SECONDS", 0.1)
    client = SyncMPClient(peer.addresses)
    with client.resources.lock:  # what the handler interrupts may hold it
        client.close()
        with pytest.raises(ClientClosedError):
            client.is_sleeping()
    eventually(lambda: not client.resources._thread.is_alive(), "the end of the thread")
    assert client.resources._context.closed


def test_the_clients_own_thread_may_not_wait_for_it(peer: ProtocolPeer) -> None:
    class Asking:
        stopped: str | None = None

        def complete(self, params: SamplingParams) -> SamplingParams:
            return params

        def reader(self, _: SamplingParams) -> "Asking":
            return self

        def push(self, _: object) -> str:
            return str(client.resume_scheduler())

        def finish(self) -> str:
            return ""

    with SyncMPClient(peer.addresses, tokenizer=Asking()) as client:
        with pytest.raises(RuntimeError, match="would wait for itself"):
            list(client.generate(PROMPT, PARAMS))
        client.resume_scheduler()


def test_clients_come_and_go(peer: ProtocolPeer) -> None:
    for _ in range(30):
        with SyncMPClient(peer.addresses) as client:
            assert [t for o in client.generate(PROMPT, PARAMS) for t in o.new_token_ids] == PROMPT
    eventually(lambda: peer.byes == 30, "BYE of each")
    assert len(peer.adds) == 30
