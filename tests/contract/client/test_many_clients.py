"""64 clients with 256 streams each, at once, on one engine.

That a flood of one client does not hold up another is in server/test_requests.py.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest

from enginecore_client import AsyncMPClient
from enginecore_wire.contract import TransportConfig
from support.eventually import eventually_async
from support.faces import params
from support.pod import Pod, client_addresses
from support.pod_pages import sample

CLIENTS, STREAMS, TOKENS = 64, 256, 12
OPTIONS = ("--max-num-seqs", str(CLIENTS * STREAMS), "--tokens", str(TOKENS), "--token-seconds",
           "0.02")  # fmt: skip
PORTS = TransportConfig(host="127.0.0.1", input_port=0, output_port=0, http_port=0,
                        max_clients=CLIENTS)  # fmt: skip


@pytest.mark.timeout(240)
async def test_every_stream_of_every_client_gets_its_own_tokens_and_all_of_them(
    start_pod: Callable[..., Pod],
) -> None:
    pod = start_pod(*OPTIONS, transport=PORTS).wait_ready()
    first: dict[int, float] = {}
    last: dict[int, float] = {}

    async def read(client: AsyncMPClient, number: int, stream: int) -> None:
        prompt = [number, stream, 999 - number]
        tokens: list[int] = []
        async for output in client.generate(prompt, params(TOKENS)):
            first.setdefault(number, time.monotonic())
            tokens += output.new_token_ids
        last[number] = time.monotonic()
        assert tokens == (prompt * TOKENS)[:TOKENS]

    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(AsyncMPClient(client_addresses([pod])))
            for _ in range(CLIENTS)
        ]
        await clients[0].pause_scheduler_async("keep", False)
        async with asyncio.TaskGroup() as readers:
            for stream in range(STREAMS):
                for number, client in enumerate(clients):
                    readers.create_task(read(client, number, stream))
            await eventually_async(lambda: pod.status().in_flight == CLIENTS * STREAMS)
            assert not first
            begun = time.monotonic()
            await clients[0].resume_scheduler_async()
        seconds = time.monotonic() - begun
        assert pod.status().in_flight == 0
    delivered = CLIENTS * STREAMS * TOKENS
    print(f"{delivered} tokens in {seconds:.1f} s; first tokens over "
          f"{max(first.values()) - min(first.values()):.2f} s, ends over "
          f"{max(last.values()) - min(last.values()):.2f} s")  # fmt: skip
    assert sample(pod, "vllm:generation_tokens_total") == delivered
    assert sample(pod, "enginecore_server_outputs_dropped_total") == 0.0
    assert sample(pod, 'enginecore_server_rejected_total{reason="overloaded"}') == 0.0
