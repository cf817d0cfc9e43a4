"""A fault that users of vLLM met, held from here: large frames amid many small ones.

The number in a test's name is its row in docs/upstream-faults.md.
"""

import asyncio
import json
import zlib
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest

from enginecore_client import AsyncMPClient, EngineCoreRequest
from support.faces import params
from support.pod import Pod, client_addresses, stub_config

pytestmark = pytest.mark.may_leak(
    "threads", "sockets", reason="pyzmq frees buffers in one thread that it never ends"
)

PROMPT = [7, 11, 13]
WIDTH, ROWS = 256, 1024  # of float32: 1 MiB


@pytest.fixture(scope="module")
def embeds_pod(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pod]:
    """A pod whose engine takes embeddings, and returns them with their checksum."""
    model = tmp_path_factory.mktemp("model")
    (model / "config.json").write_text(json.dumps({"vocab_size": 1000, "hidden_size": WIDTH}))
    config = stub_config("--enable-prompt-embeds", "--tokens", "40", "--token-seconds", "0.001")
    config = msgspec.structs.replace(
        config, model=msgspec.structs.replace(config.model, path=str(model), vocab_size=None)
    )
    with Pod(config) as running:
        yield running.wait_ready()


def embeds_of(number: int) -> Any:
    generator = np.random.default_rng(number)
    return generator.random((ROWS, WIDTH), dtype=np.float32)


async def test_fault_50053_large_frames_under_load_arrive_unharmed(embeds_pod: Pod) -> None:
    """1 MiB each way and per request, amid many small streams: every checksum is right."""
    async with AsyncMPClient(client_addresses([embeds_pod])) as client:

        async def large(number: int) -> None:
            embeds = embeds_of(number)
            request = EngineCoreRequest(
                f"large-{number}", None, sampling_params=params(5), prompt_embeds=embeds
            )
            outputs = [output async for output in client.generate(request)]
            first = outputs[0]
            assert first.trace_headers == {"crc32": str(zlib.crc32(embeds))}, "on the way there"
            assert first.routed_experts is not None
            assert np.array_equal(first.routed_experts.numpy(), embeds), "on the way back"
            assert sum(len(output.new_token_ids) for output in outputs) == 5

        async def small() -> None:
            tokens = [t async for o in client.generate(PROMPT, params(40)) for t in o.new_token_ids]
            assert tokens == [PROMPT[i % 3] for i in range(40)]

        for turn in range(10):
            await asyncio.gather(
                *(large(20 * turn + number) for number in range(20)), *(small() for _ in range(40))
            )
        assert client._driver.core.unreadable == 0
