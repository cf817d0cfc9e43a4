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
from support.pod_pages import sample, short
from support.tcp_gate import TcpGate

TOKENS, STREAMS, CUTS = 150, 8, 12
SLOW = ("--tokens", str(TOKENS), "--token-seconds", "0.01")
RELAYED = "enginecore_server_outputs_relayed_total"
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
def line(start_pod: Callable[..., Pod], request: pytest.FixtureRequest) -> Iterator[Line]:
    """A pod behind gates; a parameter has more options of its engine."""
    options = getattr(request, "param", ())
    pod = start_pod(*SLOW, *options, liveness=short(grace_seconds=5.0)).wait_ready()
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


class Askers:
    """Streams that go on being asked for; each is whole, or its beginning and an error."""

    def __init__(self, client: AsyncMPClient) -> None:
        self._client = client
        self.whole = self.told = 0
        self._tasks = [asyncio.create_task(self._keep_asking(each)) for each in range(STREAMS)]

    async def ask(self, number: int) -> None:
        """Read a stream to its end."""
        tokens: list[int] = []
        try:
            async for output in self._client.generate(prompt_of(number), params(TOKENS)):
                tokens += output.new_token_ids
        except LostOutputsError as error:
            self.told += error.retryable
            assert tokens == prompt_of(number)[: len(tokens)]
            return
        assert tokens == prompt_of(number)
        self.whole += 1

    async def ended(self, more: int) -> None:
        """Wait until so many more have ended."""
        before = self.whole + self.told
        await eventually_async(lambda: self.whole + self.told >= before + more)

    async def stop(self) -> None:
        """Ask no more; whatever was wrong is raised."""
        for task in self._tasks:
            task.cancel()
        for end in await asyncio.gather(*self._tasks, return_exceptions=True):
            if not isinstance(end, asyncio.CancelledError):
                raise end

    async def _keep_asking(self, first: int) -> None:
        for number in range(first, 10_000, STREAMS):
            await self.ask(number)


async def cut_at_random(line: Line, client: AsyncMPClient, sides: list[str]) -> Askers:
    """Break connections at moments that nobody chose, after some outputs were lost in them."""
    chance = random.Random(11)
    askers = Askers(client)
    for _ in range(CUTS):
        await asyncio.sleep(chance.uniform(0.0, 0.4))
        side = chance.choice(sides)
        if side != "input":
            line.gates[1].lose()
            relayed = sample(line.pod, RELAYED)
            await eventually_async(lambda: sample(line.pod, RELAYED) > relayed)  # noqa: B023
        line.cut(side)
        await askers.ended(STREAMS)
    await askers.stop()
    await eventually_async(lambda: line.pod.status().in_flight == 0)
    await askers.ask(7)
    print(f"whole: {askers.whole}, told: {askers.told}")
    return askers


async def test_no_token_is_lost_unnoticed_or_doubled(line: Line) -> None:
    async with AsyncMPClient(line.addresses) as client:
        askers = await cut_at_random(line, client, list(SIDES))
    assert askers.whole > STREAMS


async def test_outputs_that_were_lost_on_the_way_are_sent_again(line: Line) -> None:
    async with AsyncMPClient(line.addresses) as client:
        askers = await cut_at_random(line, client, ["output"])
    assert askers.told == 0
    assert askers.whole > STREAMS * CUTS
    assert sample(line.pod, "enginecore_server_outputs_replayed_total") > 0


@pytest.mark.parametrize("line", [("--payload-bytes", "70000")], indirect=True)
async def test_what_is_too_large_to_be_kept_ends_its_stream_with_an_error(line: Line) -> None:
    async with AsyncMPClient(line.addresses) as client:
        askers = await cut_at_random(line, client, ["output"])
    assert askers.told >= STREAMS * CUTS - askers.whole > 0
    assert sample(line.pod, "enginecore_server_outputs_replayed_total") == 0.0
