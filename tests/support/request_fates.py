"""Requests that end in every way there is, by the thousand, and what they leave behind.

`python -m support.request_fates async 10000` prints `Left` as JSON. It is a process of its own
because one that has run other tests grows and shrinks for reasons of theirs.
"""

import asyncio
import gc
import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from enginecore_client import (
    AsyncMPClient,
    EngineCoreRequest,
    OutputKind,
    OverloadedError,
    RequestRejectedError,
    RequestTimeoutError,
    SamplingParams,
    SyncMPClient,
)
from enginecore_client._core.books import CallRecord, RequestRecord
from enginecore_client._faces.streams import AsyncStream, SyncStream
from enginecore_wire.control import Limits
from support.eventually import eventually, eventually_async
from support.faces import params
from support.letters import Letters
from support.pod import Pod, client_addresses, stub_config

PROMPT = [7, 11, 13]
LENGTH = 12
AT_ONCE = 160
IN_FLIGHT = 120
"""The server takes fewer requests than are tried at once, so some are refused as too many."""

WRONG = SamplingParams(temperature=9.0)
KINDS = (OutputKind.DELTA, OutputKind.CUMULATIVE, OutputKind.FINAL_ONLY)
STOPPED = {"max_tokens": LENGTH, "temperature": 1.0, "n": 2, "stop": ["\r\x07"]}


def resident_bytes() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def assert_books_empty(client: AsyncMPClient | SyncMPClient) -> None:
    core = client._driver.core
    ledger = core._ledger
    books = (ledger._names, ledger._timed, ledger._timed_calls, ledger.waiting, ledger.events)
    assert core.unfinished == 0
    assert [book for book in books if book] == []
    assert ledger.queued_count == 0
    for connection in core._fleet.connections.values():
        assert not connection.requests
        assert not connection.calls
        assert not connection.outbox
    gc.collect()
    kept = (RequestRecord, CallRecord, AsyncStream, SyncStream)
    assert [each for each in gc.get_objects() if type(each) in kept] == []


def start_pod() -> Pod:
    """Start an engine whose server takes fewer requests than are tried at once."""
    options = ("--tokens", str(LENGTH), "--token-seconds", "0.001")
    return Pod(stub_config(*options, limits=Limits(in_flight=IN_FLIGHT))).wait_ready()


class AsyncFates:
    """Ends one request after another, each in a way that chance decides."""

    def __init__(self, client: AsyncMPClient, seed: int) -> None:
        self.client = client
        self.chance = random.Random(seed)
        self.ends: dict[str, int] = {}

    async def run(self, count: int) -> None:
        numbers = iter(range(count))

        async def work() -> None:
            for number in numbers:
                await self.one(str(number))

        await asyncio.gather(*(work() for _ in range(AT_ONCE)))

    async def one(self, name: str) -> None:
        fates = (self.read, self.leave, self.abort, self.cancel, self.drop, self.late, self.refused,
                 self.stopped, self.queued, self.called)  # fmt: skip
        fate = self.chance.choice(fates)
        try:
            await fate(name)
        except OverloadedError:
            self.count("too many")
        else:
            self.count(fate.__name__)

    def count(self, end: str) -> None:
        self.ends[end] = self.ends.get(end, 0) + 1

    def stream(self, name: str, **options: Any) -> AsyncStream:
        sampling = params(LENGTH, output_kind=self.chance.choice(KINDS))
        return self.client.generate(PROMPT, sampling, name, **options)

    async def read(self, name: str) -> None:
        outputs = [output async for output in self.stream(name)]
        assert outputs[-1].finish_reason is not None

    async def leave(self, name: str) -> None:
        async for _ in self.stream(name):
            break

    async def abort(self, name: str) -> None:
        stream = self.stream(name)
        if self.chance.random() < 0.5:
            await anext(stream)
        await self.client.abort_requests_async([name])

    async def cancel(self, name: str) -> None:
        task = asyncio.create_task(self.read(name))
        await asyncio.sleep(self.chance.random() / 100)  # cancelled wherever it is by then
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled() and isinstance(task.exception(), OverloadedError):
            raise OverloadedError("as above")

    async def drop(self, name: str) -> None:
        self.stream(name)

    async def late(self, name: str) -> None:
        stream = self.stream(name, deadline=self.chance.random() / 50)
        try:
            async for _ in stream:
                pass
        except RequestTimeoutError:
            self.count("timeout")

    async def refused(self, name: str) -> None:
        with pytest.raises(RequestRejectedError):
            await anext(self.client.generate(PROMPT, WRONG, name))

    async def stopped(self, name: str) -> None:
        outputs = [o async for o in self.client.generate(PROMPT, SamplingParams(**STOPPED), name)]
        assert outputs[-1].stop_reason == STOPPED["stop"][0]

    async def queued(self, name: str) -> None:
        await self.client.add_request_async(
            EngineCoreRequest(name, PROMPT, sampling_params=params(LENGTH))
        )
        await self.client.abort_requests_async([name])

    async def called(self, name: str) -> None:
        task = asyncio.create_task(self.client.is_sleeping_async())
        await asyncio.sleep(0)
        if self.chance.random() < 0.5:
            task.cancel()
        await asyncio.wait([task])


class SyncFates:
    """The same in a thread."""

    def __init__(self, client: SyncMPClient, seed: int) -> None:
        self.client = client
        self.chance = random.Random(seed)
        self.name = str(seed)
        self.ends: set[str] = set()

    def run(self, count: int) -> None:
        fates = (self.read, self.leave, self.abort, self.drop, self.late, self.refused,
                 self.stopped, self.queued, self.called)  # fmt: skip
        for number in range(count):
            fate = self.chance.choice(fates)
            try:
                fate(f"{self.name}-{number}")
            except OverloadedError:
                self.ends.add("too many")
            else:
                self.ends.add(fate.__name__)

    def stream(self, name: str, **options: Any) -> SyncStream:
        sampling = params(LENGTH, output_kind=self.chance.choice(KINDS))
        return self.client.generate(PROMPT, sampling, name, **options)

    def read(self, name: str) -> None:
        assert list(self.stream(name))[-1].finish_reason is not None

    def leave(self, name: str) -> None:
        with self.stream(name) as stream:
            next(stream)

    def abort(self, name: str) -> None:
        stream = self.stream(name)
        if self.chance.random() < 0.5:
            next(stream)
        self.client.abort_requests([name])
        assert stream.request_id == name

    def drop(self, name: str) -> None:
        self.stream(name)

    def late(self, name: str) -> None:
        try:
            list(self.stream(name, deadline=self.chance.random() / 50))
        except RequestTimeoutError:
            self.ends.add("timeout")

    def refused(self, name: str) -> None:
        with pytest.raises(RequestRejectedError):
            self.client.generate(PROMPT, WRONG, name)

    def stopped(self, name: str) -> None:
        outputs = list(self.client.generate(PROMPT, SamplingParams(**STOPPED), name))
        assert outputs[-1].stop_reason == STOPPED["stop"][0]

    def queued(self, name: str) -> None:
        self.client.add_request(EngineCoreRequest(name, PROMPT, sampling_params=params(LENGTH)))
        self.client.abort_requests([name])

    def called(self, name: str) -> None:
        try:
            assert (
                self.client.call_utility("is_sleeping", timeout=self.chance.random() / 50) is False
            )
        except RequestTimeoutError:
            self.ends.add("call timeout")


class Left(msgspec.Struct, frozen=True):
    """What is there after all requests.

    Attributes:
        ends: how requests ended.
        grown: bytes that this process holds more than after a fifth of the requests.
    """

    ends: set[str]
    grown: int


def run_async(count: int) -> Left:
    """Send `count` requests through one `AsyncMPClient`, see them forgotten; needs no loop."""
    return asyncio.run(_run_async(count))


async def _run_async(count: int) -> Left:
    with start_pod() as pod:
        tasks = asyncio.all_tasks()
        async with AsyncMPClient(client_addresses([pod]), tokenizer=Letters()) as client:
            fates = AsyncFates(client, seed=4)
            await fates.run(count // 5)
            before = resident_bytes()
            await fates.run(count - count // 5)
            await eventually_async(lambda: client._driver.core.unfinished == 0, "client forgot")
            await eventually_async(lambda: pod.status().in_flight == 0, "the engine forgot")
            assert asyncio.all_tasks() == tasks
            assert_books_empty(client)
            return Left(set(fates.ends), resident_bytes() - before)


def run_sync(count: int, threads: int = 16) -> Left:
    """Send `count` requests through one `SyncMPClient` from `threads` threads."""
    with start_pod() as pod, SyncMPClient(client_addresses([pod]), tokenizer=Letters()) as client:
        others = threading.active_count()
        fates = [SyncFates(client, seed) for seed in range(threads)]

        def run(count: int) -> None:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(lambda each: each.run(count // threads), fates))

        run(count // 5)
        before = resident_bytes()
        run(count - count // 5)
        eventually(lambda: client._driver.core.unfinished == 0, "the client forgot")
        eventually(lambda: pod.status().in_flight == 0, "the engine forgot")
        assert threading.active_count() == others
        with client.resources.lock:
            assert_books_empty(client)
        ends = set().union(*(each.ends for each in fates))
        return Left(ends, resident_bytes() - before)


if __name__ == "__main__":
    run = {"async": run_async, "sync": run_sync}[sys.argv[1]]
    print(msgspec.json.encode(run(int(sys.argv[2]))).decode())
