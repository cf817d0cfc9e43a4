"""Stream tokens of several prompts at once, with metrics.

    python examples/01-stream/stream.py client_addresses.json

The file holds `{"input_address": […], "output_address": […]}`, as the operator's ConfigMap
does; engines may come and go while this runs.
"""

import asyncio
import sys

from prometheus_client import CollectorRegistry, generate_latest

from enginecore_client import AsyncMPClient, EngineCoreError, OutputKind, SamplingParams

PROMPTS = [[1, 2, 3], [4, 5, 6, 7], [8, 9]]


async def show(client: AsyncMPClient, number: int, prompt: list[int]) -> None:
    params = SamplingParams(max_tokens=8, output_kind=OutputKind.DELTA)
    try:
        async for output in client.generate(prompt, params, deadline=30, retry=True):
            print(f"{number}: {output.new_token_ids} {output.finish_reason or ''}", flush=True)
    except EngineCoreError as error:
        print(f"{number}: {type(error).__name__}: {error}", flush=True)


async def main(addresses: str) -> None:
    registry = CollectorRegistry()
    async with AsyncMPClient(addresses, registry=registry, ready_timeout=60) as client:
        await asyncio.gather(*(show(client, i, prompt) for i, prompt in enumerate(PROMPTS)))
        text = generate_latest(registry).decode()
    print(*(line for line in text.splitlines() if "tokens_total{" in line), sep="\n")


asyncio.run(main(sys.argv[1]))
