"""A process with one client on an asyncio loop, which does what it is told and says what it took.

    python stream_clients.py ours|trusting|vllm INPUT_ADDRESS OUTPUT_ADDRESS MODEL

`ours` is enginecore_client's AsyncMPClient; `trusting` is one that leaves the check of token ids
to its caller, as vLLM's does; `vllm` is vLLM's, made as its API servers make it, with the smallest
thing that gives each request its outputs: a dict of queues. Commands come as lines of
JSON, and so do the answers; the first answer says that the engine is there.
"""

import asyncio
import gc
import os
import statistics
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from support.stream_commands import (
    Adds,
    Command,
    Flood,
    Paced,
    Took,
    Trips,
    Watch,
    read_command,
)

LONG_PROMPT = list(range(1000, 2024))
SHORT_PROMPT = LONG_PROMPT[:16]
VOCABULARY = 49152
SUFFIX = "-0a1b2c3d"
"""vLLM's front end makes a request's id unique before its client gets it; ours does so itself."""

Next = Callable[[], Awaitable[Any]]


class Side(ABC):
    """A client, as the measurements see it."""

    @abstractmethod
    async def connect(self) -> None:
        """Wait for the engine."""

    @abstractmethod
    def request(self, name: str, prompt: list[int], tokens: int, script: str) -> Any:
        """Return a request that `open` takes."""

    @abstractmethod
    async def open(self, request: Any) -> Next:
        """Send a request; return what gives its outputs, one after another."""


class Ours(Side):
    """Our client, whose streams are per request already."""

    check_prompts = True

    def __init__(self, addresses: dict[str, str], _model: str) -> None:
        import enginecore_client  # noqa: PLC0415 - each process has one client only

        self._package = enginecore_client
        native = enginecore_client.NativeOptions(vocab_size=VOCABULARY)
        self._client = enginecore_client.AsyncMPClient(
            {"mode": "bind", **addresses}, native=native, check_prompts=self.check_prompts
        )

    async def connect(self) -> None:
        await self._client.connect()

    def request(self, name: str, prompt: list[int], tokens: int, script: str) -> Any:
        delta = self._package.OutputKind.DELTA
        params = self._package.SamplingParams(max_tokens=tokens, ignore_eos=True, output_kind=delta)
        return self._package.EngineCoreRequest(
            name, prompt, sampling_params=params, cache_salt=script
        )

    async def open(self, request: Any) -> Next:
        return self._client.generate(request).__anext__


class Trusting(Ours):
    """The same, with token ids that the caller has checked."""

    check_prompts = False


class Vllm(Side):
    """vLLM's client and a dict of queues."""

    def __init__(self, addresses: dict[str, str], model: str) -> None:
        from vllm.engine.arg_utils import AsyncEngineArgs  # noqa: PLC0415
        from vllm.sampling_params import RequestOutputKind, SamplingParams  # noqa: PLC0415
        from vllm.v1.engine import EngineCoreRequest  # noqa: PLC0415
        from vllm.v1.engine.core_client import AsyncMPClient  # noqa: PLC0415
        from vllm.v1.executor import Executor  # noqa: PLC0415

        self._delta, self._params = RequestOutputKind.DELTA, SamplingParams
        self._request = EngineCoreRequest
        self._queues: dict[str, asyncio.Queue[Any]] = {}
        config = AsyncEngineArgs(model=model, max_model_len=8192).create_engine_config()
        self._client = AsyncMPClient(
            config, Executor.get_class(config), log_stats=False, client_addresses=addresses,
            client_count=2, client_index=1,
        )  # fmt: skip

    async def connect(self) -> None:
        self._task = asyncio.create_task(self._demultiplex())

    async def _demultiplex(self) -> None:
        queues = self._queues
        while True:
            message = await self._client.get_output_async()
            for output in message.outputs:
                queues[output.request_id].put_nowait(output)
                if output.finish_reason is not None:
                    del queues[output.request_id]

    def request(self, name: str, prompt: list[int], tokens: int, script: str) -> Any:
        params = self._params(max_tokens=tokens, ignore_eos=True, output_kind=self._delta)
        return self._request(
            request_id=name + SUFFIX, prompt_token_ids=prompt, mm_features=None,
            sampling_params=params, pooling_params=None, arrival_time=time.time(),
            lora_request=None, cache_salt=script, data_parallel_rank=None, external_req_id=name,
        )  # fmt: skip

    async def open(self, request: Any) -> Next:
        queue: asyncio.Queue[Any] = asyncio.Queue()
        self._queues[request.request_id] = queue
        await self._client.add_request_async(request)
        return queue.get


async def consume(get: Next) -> int:
    """Read the outputs of one request to its end; return how many tokens they had."""
    tokens = 0
    while True:
        output = await get()
        tokens += len(output.new_token_ids)
        if output.finish_reason is not None:
            return tokens


class Runner:
    """Has one side carry out commands."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self._names = 0

    async def run(self, command: Command) -> Took:
        """Carry out a command."""
        gc.collect()
        match command:
            case Flood(streams, tokens):
                return await self._read(streams, tokens, f"flood:{streams}:0")
            case Paced(streams, tokens, step):
                return await self._read(streams, tokens, f"flood:{streams}:{step}")
            case Adds(count):
                return await self._add(count)
            case Trips(count):
                return await self._go(count)

    def _request(self, prompt: list[int], tokens: int, script: str) -> Any:
        self._names += 1
        return self._side.request(f"request-{self._names:06}", prompt, tokens, script)

    async def _read(self, streams: int, tokens: int, script: str) -> Took:
        """Time runs from the last request, for which the engine waits."""
        requests = [self._request(SHORT_PROMPT, tokens, script) for _ in range(streams)]
        gets = [await self._side.open(request) for request in requests[:-1]]
        watch = Watch()
        gets.append(await self._side.open(requests[-1]))
        counts = await asyncio.gather(*(consume(get) for get in gets))
        took = watch.took()
        assert set(counts) == {tokens}
        return took

    async def _add(self, count: int) -> Took:
        """Time runs until the engine has answered the last request."""
        gets = []
        watch = Watch()
        for _ in range(count):
            request = self._request(LONG_PROMPT, 1, f"count:{count}:0")
            gets.append(await self._side.open(request))
        await consume(gets[-1])
        took = watch.took()
        await asyncio.gather(*(consume(get) for get in gets[:-1]))
        return took

    async def _go(self, count: int) -> Took:
        seconds = []
        watch = Watch()
        for _ in range(count):
            begin = time.perf_counter()
            await consume(await self._side.open(self._request(SHORT_PROMPT, 1, "flood:1:0")))
            seconds.append(time.perf_counter() - begin)
        took = watch.took()
        cuts = statistics.quantiles(seconds, n=100)
        took.p50, took.p99 = cuts[49], cuts[98]
        return took


SIDES: dict[str, Callable[[dict[str, str], str], Side]] = {
    "ours": Ours,
    "trusting": Trusting,
    "vllm": Vllm,
}


async def serve(kind: str, addresses: dict[str, str], model: str, answers: int) -> None:
    """Carry out commands until there are no more."""
    side = SIDES[kind](addresses, model)
    await side.connect()
    gc.collect()
    gc.freeze()  # as vLLM's API servers do: what was imported is not looked through again
    runner = Runner(side)
    os.write(answers, b"ready\n")
    while (command := await asyncio.to_thread(read_command)) is not None:
        took = await runner.run(command)
        os.write(answers, msgspec.json.encode(took) + b"\n")


def main(arguments: Sequence[str]) -> None:
    """Run the command line."""
    kind, input_address, output_address, model = arguments
    answers = os.dup(1)
    os.dup2(2, 1)  # what libraries print must not come between the answers
    addresses = {"input_address": input_address, "output_address": output_address}
    asyncio.run(serve(kind, addresses, model, answers))


if __name__ == "__main__":
    main(sys.argv[1:])
