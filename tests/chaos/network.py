"""Ways to ports of this host that can break, or swallow everything for a while."""

import asyncio
import gc
import threading
import warnings
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Self, TypeVar

T = TypeVar("T")

CHUNK = 1 << 16
TURN_SECONDS = 0.01


class Gate:
    """One port that leads to another. Methods are the network's thread's alone."""

    def __init__(self, target: int) -> None:
        self.port = 0
        self._target = target
        self._open = asyncio.Event()
        self._open.set()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    async def start(self) -> None:
        """Begin to listen."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """Break every connection, with what is on its way."""
        for writer in self._writers:
            writer.transport.abort()

    def swallow(self, lasts: bool) -> None:
        """Let nothing through in either direction, or all again: TCP sends it once more."""
        if lasts:
            self._open.clear()
        else:
            self._open.set()

    async def close(self) -> None:
        """Break everything and listen no more."""
        assert self._server is not None
        self._closed = True
        self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        ends = [writer]
        self._writers.add(writer)
        try:
            if self._closed:  # it was accepted before that
                return
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
            ends.append(back)
            self._writers.add(back)
            ways = [
                asyncio.ensure_future(self._carry(*way))
                for way in ((reader, back), (there, writer))
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for end in ends:
                end.transport.abort()
                self._writers.discard(end)
                with suppress(OSError, asyncio.CancelledError):
                    await end.wait_closed()
            self._tasks.discard(task)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK):
            await self._open.wait()
            writer.write(data)
            await writer.drain()


class Network:
    """Gates on an event loop in a thread of its own; a context manager."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="chaos network")
        self._gates: list[Gate] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        for gate in list(self._gates):
            self.close(gate)
        self._run(_quiet())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        with warnings.catch_warnings():  # of connections that were being made as their gate closed
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()

    def open(self, target: int) -> Gate:
        """Return a gate to a port of this host."""

        async def make() -> Gate:
            gate = Gate(target)
            await gate.start()
            return gate

        gate = self._run(make())
        self._gates.append(gate)
        return gate

    def cut(self, gate: Gate) -> None:
        """Break a gate's connections."""
        self._loop.call_soon_threadsafe(gate.cut)

    def swallow(self, gate: Gate, *, lasts: bool) -> None:
        """Begin or end a hole."""
        self._loop.call_soon_threadsafe(gate.swallow, lasts)

    def close(self, gate: Gate) -> None:
        """Close a gate for good."""
        self._gates.remove(gate)
        self._run(gate.close())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=30)


async def _quiet() -> None:
    """Return once nothing is under way on this loop any more."""
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(others)
    await asyncio.sleep(TURN_SECONDS)  # transports close in the turn after
