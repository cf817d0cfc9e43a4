"""Every kind of client under one set of blocking calls, so that one suite holds for each.

`AsyncFace` runs its client on an event loop in a thread of its own.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Final, Protocol

from enginecore_client import AsyncMPClient, InprocClient, RequestTimeoutError, SyncMPClient
from enginecore_wire.outputs import EngineCoreOutput, EngineCoreOutputs
from enginecore_wire.requests import EngineCoreRequest, OutputKind, SamplingParams

WAIT_SECONDS: Final = 30.0

Prompt = Sequence[int] | EngineCoreRequest


def params(max_tokens: int | None, **more: Any) -> SamplingParams:
    """Return greedy sampling of `max_tokens` new tokens, each sent once."""
    fixed = {"temperature": 0.0, "ignore_eos": True, "output_kind": OutputKind.DELTA}
    return SamplingParams(max_tokens=max_tokens, **(fixed | more))


class Face(Protocol):
    """A client that is connected.

    Attributes:
        client: the client itself.
    """

    client: Any

    def generate(
        self, prompt: Prompt, sampling: SamplingParams | None = None, **options: Any
    ) -> Iterator[EngineCoreOutput]:
        """Send a request; return its outputs as they come. Closing them early aborts it."""

    def add(self, request: EngineCoreRequest) -> None:
        """Send a request whose outputs `get_output` returns."""

    def get_output(self, timeout: float | None = None) -> EngineCoreOutputs:
        """Return the next message.

        Raises:
            TimeoutError: there was none within `timeout` seconds (WAIT_SECONDS if None).
        """

    def abort(self, request_ids: Sequence[str]) -> list[str]:
        """End requests; return the ids of those that had not ended."""

    def call(self, method: str, *args: Any, **options: Any) -> Any:
        """Call an engine's method by name."""

    def control(self, name: str, *args: Any) -> Any:
        """Run a control operation, the client's own method; return its result."""

    def abandon(self, seconds: float, method: str, *args: Any, **options: Any) -> None:
        """Call an engine's method, and stop waiting for its reply after `seconds`.

        Raises:
            AssertionError: the reply came before.
        """

    def close_client(self) -> None:
        """Close the client, whose streams may still be read."""

    def close(self) -> None:
        """Close the client and what this face needs for itself."""


class BlockingFace:
    """A client whose methods block, as it is.

    Args:
        client: the client.
        timed: whether its `get_output` and calls take a `timeout`.
    """

    def __init__(self, client: Any, *, timed: bool = True) -> None:
        self.client = client
        self._timed = timed

    def generate(
        self, prompt: Prompt, sampling: SamplingParams | None = None, **options: Any
    ) -> Iterator[EngineCoreOutput]:
        """Send a request; see Face."""
        stream: Iterator[EngineCoreOutput] = self.client.generate(prompt, sampling, **options)
        return stream

    def add(self, request: EngineCoreRequest) -> None:
        """Send a request; see Face."""
        self.client.add_request(request)

    def get_output(self, timeout: float | None = None) -> EngineCoreOutputs:
        """Return the next message; see Face."""
        seconds = WAIT_SECONDS if timeout is None else timeout
        timed = {"timeout": seconds} if self._timed else {}
        outputs: EngineCoreOutputs = self.client.get_output(**timed)
        return outputs

    def abort(self, request_ids: Sequence[str]) -> list[str]:
        """End requests; see Face."""
        aborted: list[str] = self.client.abort_requests(request_ids)
        return aborted

    def call(self, method: str, *args: Any, **options: Any) -> Any:
        """Call an engine's method by name."""
        return self.client.call_utility(method, *args, **options)

    def control(self, name: str, *args: Any) -> Any:
        """Run a control operation."""
        return getattr(self.client, name)(*args)

    def abandon(self, seconds: float, method: str, *args: Any, **options: Any) -> None:
        """Call a method and stop waiting; see Face."""
        try:
            self.call(method, *args, timeout=seconds, **options)
        except RequestTimeoutError:
            return
        raise AssertionError(f"{method} was answered")

    def close_client(self) -> None:
        """Close the client."""
        self.client.close()

    def close(self) -> None:
        """Close the client."""
        self.client.close()


class SyncFace(BlockingFace):
    """SyncMPClient as it is.

    Args:
        addresses: where its engines are.
        make: makes the client.
        options: of the client.
    """

    client: SyncMPClient

    def __init__(
        self, addresses: Any, make: Callable[..., Any] = SyncMPClient, **options: Any
    ) -> None:
        super().__init__(make(addresses, **({"ready_timeout": WAIT_SECONDS} | options)))


class InprocFace(BlockingFace):
    """InprocClient as it is: nobody waits, so nothing has a timeout."""

    client: InprocClient

    def __init__(
        self, engine: Any, make: Callable[..., Any] = InprocClient, **options: Any
    ) -> None:
        super().__init__(make(engine, **options), timed=False)


class AsyncFace:
    """AsyncMPClient on a loop of its own.

    Args:
        addresses: where its engines are.
        make: makes the client.
        options: of the client.
    """

    def __init__(
        self, addresses: Any, make: Callable[..., Any] = AsyncMPClient, **options: Any
    ) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="async face")
        self._thread.start()
        options = {"ready_timeout": WAIT_SECONDS} | options
        try:
            self.client: AsyncMPClient = self._run(
                self._open(make, addresses, options), WAIT_SECONDS + options["ready_timeout"]
            )
        except BaseException:
            self._stop()
            raise

    def generate(
        self, prompt: Prompt, sampling: SamplingParams | None = None, **options: Any
    ) -> Iterator[EngineCoreOutput]:
        """Send a request; see Face."""

        async def start() -> Any:
            return self.client.generate(prompt, sampling, **options)

        return self._outputs(self._run(start()))

    def add(self, request: EngineCoreRequest) -> None:
        """Send a request; see Face."""
        self._run(self.client.add_request_async(request))

    def get_output(self, timeout: float | None = None) -> EngineCoreOutputs:
        """Return the next message; see Face."""
        seconds = WAIT_SECONDS if timeout is None else timeout
        outputs: EngineCoreOutputs = self._run(
            asyncio.wait_for(self.client.get_output_async(), seconds), seconds + WAIT_SECONDS
        )
        return outputs

    def abort(self, request_ids: Sequence[str]) -> list[str]:
        """End requests; see Face."""
        aborted: list[str] = self._run(self.client.abort_requests_async(request_ids))
        return aborted

    def call(self, method: str, *args: Any, **options: Any) -> Any:
        """Call an engine's method by name."""
        return self._run(self.client.call_utility_async(method, *args, **options))

    def control(self, name: str, *args: Any) -> Any:
        """Run a control operation."""
        return self._run(getattr(self.client, f"{name}_async")(*args))

    def abandon(self, seconds: float, method: str, *args: Any, **options: Any) -> None:
        """Cancel a call that is under way; see Face."""

        async def cancelled() -> bool:
            task = asyncio.create_task(self.client.call_utility_async(method, *args, **options))
            await asyncio.wait([task], timeout=seconds)
            done = task.done()
            task.cancel()
            await asyncio.wait([task])
            return not done

        if not self._run(cancelled()):
            raise AssertionError(f"{method} was answered")

    def close_client(self) -> None:
        """Close the client; its loop goes on."""
        self._run(self.client.aclose())

    def close(self) -> None:
        """Close the client, then its loop."""
        if self._loop.is_closed():
            return
        try:
            self._run(self.client.aclose())
        finally:
            self._stop()

    async def _open(
        self, make: Callable[..., Any], addresses: Any, options: dict[str, Any]
    ) -> AsyncMPClient:
        client: AsyncMPClient = make(addresses, **options)
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
            if not self._loop.is_closed():
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


FACES: Final[dict[str, type[SyncFace] | type[AsyncFace]]] = {"sync": SyncFace, "async": AsyncFace}
