"""Both clients under one set of blocking calls, so that one suite holds for either.

`AsyncFace` runs its client on an event loop in a thread of its own.
"""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from enginecore_client import AsyncMPClient, SyncMPClient
from enginecore_wire.outputs import EngineCoreOutput, EngineCoreOutputs
from enginecore_wire.requests import EngineCoreRequest, OutputKind, SamplingParams

WAIT_SECONDS = 30.0


def params(max_tokens: int, **more: Any) -> SamplingParams:
    """Return greedy sampling of `max_tokens` new tokens, each sent once."""
    fixed = {"temperature": 0.0, "ignore_eos": True, "output_kind": OutputKind.DELTA}
    return SamplingParams(max_tokens=max_tokens, **(fixed | more))


class Face(Protocol):
    """A client that is connected."""

    def generate(
        self,
        prompt: Sequence[int] | EngineCoreRequest,
        sampling: SamplingParams | None = None,
        **options: Any,
    ) -> Iterator[EngineCoreOutput]:
        """Send a request; return its outputs as they come."""

    def add(self, request: EngineCoreRequest) -> None:
        """Send a request whose outputs `get_output` returns."""

    def get_output(self) -> EngineCoreOutputs:
        """Return the next message."""

    def abort(self, request_ids: Sequence[str]) -> None:
        """End requests."""

    def call(self, method: str, *args: Any, **options: Any) -> Any:
        """Call an engine's method by name."""

    def close(self) -> None:
        """Close the client."""


class SyncFace:
    """SyncMPClient as it is."""

    def __init__(self, addresses: Any, **options: Any) -> None:
        self.client = SyncMPClient(addresses, **({"ready_timeout": WAIT_SECONDS} | options))

    def generate(
        self,
        prompt: Sequence[int] | EngineCoreRequest,
        sampling: SamplingParams | None = None,
        **options: Any,
    ) -> Iterator[EngineCoreOutput]:
        return self.client.generate(prompt, sampling, **options)

    def add(self, request: EngineCoreRequest) -> None:
        self.client.add_request(request)

    def get_output(self) -> EngineCoreOutputs:
        return self.client.get_output()

    def abort(self, request_ids: Sequence[str]) -> None:
        self.client.abort_requests(request_ids)

    def call(self, method: str, *args: Any, **options: Any) -> Any:
        return self.client.call_utility(method, *args, **options)

    def close(self) -> None:
        self.client.close()


class AsyncFace:
    """AsyncMPClient on a loop of its own."""

    def __init__(self, addresses: Any, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="async face")
        self._thread.start()
        options = {"ready_timeout": WAIT_SECONDS} | options
        try:
            self.client: AsyncMPClient = self._run(
                self._open(addresses, options), WAIT_SECONDS + options["ready_timeout"]
            )
        except BaseException:
            self._stop()
            raise

    def generate(
        self,
        prompt: Sequence[int] | EngineCoreRequest,
        sampling: SamplingParams | None = None,
        **options: Any,
    ) -> Iterator[EngineCoreOutput]:
        async def start() -> Any:
            return self.client.generate(prompt, sampling, **options)

        return self._outputs(self._run(start()))

    def add(self, request: EngineCoreRequest) -> None:
        self._run(self.client.add_request_async(request))

    def get_output(self) -> EngineCoreOutputs:
        return self._run(self.client.get_output_async())

    def abort(self, request_ids: Sequence[str]) -> None:
        self._run(self.client.abort_requests_async(request_ids))

    def call(self, method: str, *args: Any, **options: Any) -> Any:
        return self._run(self.client.call_utility_async(method, *args, **options))

    def close(self) -> None:
        self._run(self.client.aclose())
        self._stop()

    async def _open(self, addresses: Any, options: dict[str, Any]) -> AsyncMPClient:
        client = AsyncMPClient(addresses, **options)
        await client.connect()
        return client

    def _outputs(self, stream: Any) -> Iterator[EngineCoreOutput]:
        try:
            while True:
                try:
                    yield self._run(anext(stream))
                except StopAsyncIteration:
                    return
        finally:
            self._run(stream.aclose())

    def _run(self, work: Any, seconds: float = WAIT_SECONDS) -> Any:
        async def awaited() -> Any:
            return await work

        future: Future[Any] = asyncio.run_coroutine_threadsafe(awaited(), self._loop)
        return future.result(seconds)

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


FACES: dict[str, type[SyncFace] | type[AsyncFace]] = {"sync": SyncFace, "async": AsyncFace}
