"""A client that is closed while its streams are still held."""

from collections.abc import Callable

import pytest

from enginecore_client import AsyncMPClient, ClientClosedError, SyncMPClient
from support.eventually import eventually, eventually_async
from support.faces import params
from support.pod import Pod, client_addresses


@pytest.fixture
def slow_pod(make_pod: Callable[..., Pod]) -> Pod:
    return make_pod("--tokens", "1000", "--token-seconds", "0.01")


def test_stream_dropped_after_its_client_was_closed_is_quiet(slow_pod: Pod) -> None:
    client = SyncMPClient(client_addresses([slow_pod]), ready_timeout=20)
    read, unread = (client.generate([1, 2, 3], params(1000)) for _ in range(2))
    next(read)
    client.close()
    with pytest.raises(ClientClosedError):
        list(read)
    read.close()
    del unread
    eventually(lambda: slow_pod.status().clients == 0)


async def test_async_stream_dropped_after_its_client_was_closed_is_quiet(slow_pod: Pod) -> None:
    async with AsyncMPClient(client_addresses([slow_pod]), ready_timeout=20) as client:
        read, unread = (client.generate([1, 2, 3], params(1000)) for _ in range(2))
        await anext(read)
    with pytest.raises(ClientClosedError):
        async for _ in read:
            pass
    await read.aclose()
    del unread
    await eventually_async(lambda: slow_pod.status().clients == 0)
