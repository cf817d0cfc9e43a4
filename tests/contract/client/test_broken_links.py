"""Connections that break while streams run: every stream is whole, or says that it is not."""

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from enginecore_client import AsyncMPClient
from enginecore_client.errors import LostOutputsError
from support.eventually import eventually_async
from support.faces import params
from support.pod import Pod
from support.pod_pages import short
from support.tcp_gate import TcpGate

TOKENS, STREAMS, CUTS = 150, 8, 12
SLOW = ("--tokens", str(TOKENS), "--token-seconds", "0.01")
SIDES = {"input": [0], "output": [1], "both": [0, 1]}


class Line:
    """A pod behind two gates, one for each socket."""

    def __init__(self, pod: Pod, stack: ExitStack) -> None:
        self.pod = pod
        self.gates = [
            stack.enter_context(TcpGate(port)) for port in (pod.input_port, pod.output_port)
        ]
        self.addresses = {
            "input_address": self.gates[0].address,
            "output_address": self.gates[1].address,
        }

    def cut(self, side: str) -> None:
        """Break connections, as a network would."""
        for index in SIDES[side]:
            self.gates[index].cut()


@pytest.fixture
def line(start_pod: Callable[..., Pod]) -> Iterator[Line]:
    pod = start_pod(*SLOW, liveness=short(grace_seconds=5.0)).wait_ready()
    with ExitStack() as stack:
        yield Line(pod, stack)


def prompt_of(number: int) -> list[int]:
    """Return a prompt whose answer shows at each token which one it is."""
    return [(number * 7 + place) % 1000 for place in range(TOKENS)]


@pytest.mark.parametrize("side", SIDES)
async def test_a_client_that_is_back_goes_on_with_every_stream_that_lost_nothing(
    line: Line, side: str
) -> None:
    async with AsyncMPClient(line.addresses) as client:
        streams = [client.generate(prompt_of(number), params(TOKENS)) for number in range(STREAMS)]
        tokens = [list((await anext(stream)).new_token_ids) for stream in streams]
        await client.pause_scheduler_async("keep")  # nothing is under way from here on
        line.cut(side)
        await client.resume_scheduler_async()
        for stream, found in zip(streams, tokens, strict=True):
            async for output in stream:
                found += output.new_token_ids
        assert tokens == [prompt_of(number) for number in range(STREAMS)]
        assert line.pod.status().sessions[0].slot == 1, "it is the same session"


async def test_no_token_is_lost_unnoticed_or_doubled(line: Line) -> None:
    """Connections break at any moment; whatever came of a stream is its beginning, and a stream
    that ends without an error is whole."""
    chance = random.Random(11)
    ended: dict[str, int] = {"whole": 0, "told": 0}

    async def ask(client: AsyncMPClient, number: int) -> None:
        tokens: list[int] = []
        try:
            async for output in client.generate(prompt_of(number), params(TOKENS)):
                tokens += output.new_token_ids
        except LostOutputsError as error:
            ended["told"] += error.retryable
            assert tokens == prompt_of(number)[: len(tokens)]
            return
        assert tokens == prompt_of(number)
        ended["whole"] += 1

    async def keep_asking(client: AsyncMPClient, first: int) -> None:
        for number in range(first, 200 * STREAMS, STREAMS):
            await ask(client, number)

    async with AsyncMPClient(line.addresses) as client:
        tasks = [asyncio.create_task(keep_asking(client, first)) for first in range(STREAMS)]
        for _ in range(CUTS):
            before = sum(ended.values())
            await asyncio.sleep(chance.uniform(0.0, 0.4))  # a moment that nobody chose
            line.cut(chance.choice(list(SIDES)))
            await eventually_async(lambda: sum(ended.values()) >= before + STREAMS)  # noqa: B023
        for task in tasks:
            task.cancel()
        for end in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(end, asyncio.CancelledError), end
        await eventually_async(lambda: line.pod.status().in_flight == 0)
        await ask(client, 7)
    print(ended)
    assert ended["whole"] >= STREAMS
    assert ended["told"] > 0
