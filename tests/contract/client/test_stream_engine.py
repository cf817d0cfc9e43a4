"""A stream says which engine has its request."""

from enginecore_client import AsyncMPClient, SamplingParams, SyncMPClient
from support.pod import client_addresses

PROMPT = [7, 11, 13]
SHORT = SamplingParams(max_tokens=2)


async def test_async_streams_name_their_engine(start_pod) -> None:
    pods = [start_pod("--rank", str(rank), rank=rank) for rank in range(2)]
    async with AsyncMPClient(client_addresses(pods)) as client:
        for rank in (1, 0, 1):
            stream = client.generate(PROMPT, SHORT, data_parallel_rank=rank)
            assert stream.engine == rank
            async for _ in stream:
                pass
            assert stream.engine == rank


async def test_a_stream_not_sent_yet_has_no_engine(start_pod) -> None:
    client = AsyncMPClient(client_addresses([start_pod()]))
    stream = client.generate(PROMPT, SHORT)
    assert stream.engine is None
    async for _ in stream:
        pass
    assert stream.engine == 0
    await client.aclose()


def test_sync_streams_name_their_engine(start_pod) -> None:
    pods = [start_pod("--rank", str(rank), rank=rank) for rank in range(2)]
    with (
        SyncMPClient(client_addresses(pods)) as client,
        client.generate(PROMPT, SHORT, data_parallel_rank=1) as stream,
    ):
        assert stream.engine == 1
        assert list(stream)
