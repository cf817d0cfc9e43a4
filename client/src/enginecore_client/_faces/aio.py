"""AsyncMPClient: ClientCore and its sockets on an asyncio loop."""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar, Unpack

from enginecore_client._core.admission import deadline_after
from enginecore_client._faces.mp import MPClient
from enginecore_client._faces.options import EngineOptions, check_ids, retry_of
from enginecore_client._faces.sequences import build_request
from enginecore_client._faces.streams import AsyncStream
from enginecore_client._shell.driver import SWEEP_SECONDS
from enginecore_client._shell.engines import Addresses
from enginecore_client._shell.loop import LoopResources
from enginecore_client._shell.mailbox import Signal, TaskMailbox
from enginecore_client.ops import Op, checked, combine
from enginecore_wire.outputs import EngineCoreOutputs
from enginecore_wire.requests import EngineCoreRequest, SamplingParams

R = TypeVar("R")


class AsyncMPClient(MPClient[LoopResources, TaskMailbox[Any]]):
    """Client of EngineCores for asyncio.

    `async with` connects and waits until every engine (or `min_ready` of them) is ready; so does
    the first await of any other method. It begins on the loop that runs when it is made, or else
    on the one that awaits it first, and moves to another one when that loop was left.

    Args:
        client_addresses: where the engines are; see MPClient.
        options: see MPClient.

    Raises:
        AddressError: client_addresses are wrong.
        RequestRejectedError: an option is wrong.
    """

    def __init__(
        self, client_addresses: Addresses | None = None, **options: Unpack[EngineOptions]
    ) -> None:
        super().__init__(LoopResources, TaskMailbox(), client_addresses, **options)
        self._ready_by: float | None = None
        self._connected = False
        self._signal = Signal()
        self._driver.on_change = self._signal.notify
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        try:
            self.resources.attach(loop)
        except BaseException:
            self.close()
            raise

    async def __aenter__(self) -> "AsyncMPClient":
        await self.connect()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def connect(self) -> None:
        """Wait until every engine (or `min_ready` of them) is ready; returns at once once they
        have been.

        Raises:
            StartupTimeoutError: an engine was not ready in time; the client is closed.
            ProtocolMismatchError: an engine refuses this client; the client is closed.
            AddressError: the EngineCluster does not exist; the client is closed.
            ClientClosedError: the client is closed.
        """
        self._attach()
        if self._connected:
            return
        clock = self._driver.clock
        if self._ready_by is None:
            self._ready_by = clock() + self._ready_timeout
        while not self._is_ready():
            left = self._ready_by - clock()
            error = self._startup_error(expired=left <= 0)
            if error is not None:
                await self.aclose()
                raise error
            await self._signal.wait(min(left, SWEEP_SECONDS))
            self._check_open()
        self._connected = True

    async def aclose(self) -> None:
        """Close the client: what is unfinished ends with ClientClosedError. Idempotent.

        Engines that it launched have ended when this returns.
        """
        launcher = self._driver.launcher
        if launcher is not None and self._on_own_loop():
            self._driver.end()
            launcher.close()
            await asyncio.to_thread(launcher.join)
        self.close()

    def close(self) -> None:
        """Close the client, from its loop (at once) or from anywhere else."""
        if not self._on_own_loop():
            self._finalizer()
        elif self._finalizer.detach() is not None:
            self.resources.close()

    def generate(
        self,
        prompt_token_ids: Sequence[int] | EngineCoreRequest,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        deadline: float | None = None,
        data_parallel_rank: int | None = None,
        retry: bool | None = None,
        trace_headers: Mapping[str, str] | None = None,
    ) -> AsyncStream:
        """Return the stream of one request's outputs.

        Args:
            prompt_token_ids: the prompt, or a whole request (then no other field beside it).
            sampling_params: how to sample; by default 16 tokens as they come.
            request_id: the caller's name for it; random if None.
            deadline: seconds from now after which it ends with RequestTimeoutError.
            data_parallel_rank: the engine to use; None for the least loaded.
            retry: send it again as long as it has no token; None for the client's default.
            trace_headers: trace context (`traceparent`, `tracestate`) for the engine's tracer.

        The stream raises what ends the request: EngineDeadError, RequestRejectedError, …
        """
        request = build_request(
            prompt_token_ids, sampling_params, request_id, data_parallel_rank, trace_headers
        )
        again = retry_of(retry, self._retry)
        stream = AsyncStream(
            self._driver,
            self.resources,
            self.connect,
            request,
            self._tokenizer,
            deadline,
            retry=again,
        )
        if self._connected and self._on_own_loop():
            stream.start()
        return stream

    async def add_request_async(self, request: EngineCoreRequest) -> None:
        """Send a request whose outputs get_output_async returns.

        Raises:
            RequestRejectedError: a field is wrong; nothing was sent.
            EngineNotReadyError, EngineDeadError, EngineDrainingError, OverloadedError:
                no engine takes it now.
        """
        await self.connect()
        self._driver.add(request, None, None, retry=self._retry)

    async def abort_requests_async(self, request_ids: Sequence[str]) -> list[str]:
        """End requests and return the ids of those that had not ended; see EngineCoreClient."""
        check_ids(request_ids)
        await self.connect()
        return self._driver.abort(request_ids)

    async def get_output_async(self) -> EngineCoreOutputs:
        """Return the next message with outputs of requests added by add_request_async.

        Raises:
            EngineDeadError: once for each engine that died; other engines go on.
            EngineCoreError: requests ended with an error; `request_ids` names them.
        """
        await self.connect()
        item = await self.outputs_queue.get()
        if isinstance(item, BaseException):
            raise item
        outputs: EngineCoreOutputs = item
        return outputs

    def scale_elastic_ep(self, new_data_parallel_size: int) -> Coroutine[Any, Any, None]:
        """Set the number of engines, to be awaited; see EngineCoreClient."""
        scale = self._scaler(new_data_parallel_size)
        return asyncio.to_thread(scale, new_data_parallel_size)

    async def call_async(
        self, op: Op[R], *, engine: int | None = None, timeout: float | None = None
    ) -> R:
        """Run a control operation on one engine, or on all and combine their replies.

        Raises:
            UtilityError: an engine says that it failed, or engines disagree.
            RequestTimeoutError: no reply came within `timeout` seconds.
        """
        replies = await self._call(checked(op).utility, op.arguments(), engine, timeout)
        return op.result(replies)

    async def call_utility_async(
        self, method: str, *args: Any, engine: int | None = None, timeout: float | None = None
    ) -> Any:
        """Call an engine's method by name; see `call_async`."""
        return combine(method, await self._call(method, args, engine, timeout))

    async def _call(
        self, method: str, args: Sequence[Any], engine: int | None, timeout: float | None
    ) -> list[Any]:
        await self.connect()
        core, loop = self._driver.core, asyncio.get_running_loop()
        deadline = deadline_after(timeout, self._driver.clock(), "timeout")
        links = core.calls.targets(engine, self._driver.clock())
        calls = core.calls.send_all(links, method, args, loop.create_future, deadline)
        self._driver.pump()
        try:
            return list(await asyncio.gather(*(call.future for call in calls)))
        finally:
            for call in calls:
                core.calls.forget(call)
            self._driver.pump()

    def _attach(self) -> None:
        self._check_open()
        loop = asyncio.get_running_loop()
        if self.resources.loop is not loop:
            self.resources.attach(loop)
            self.outputs_queue.abandon()

    def _on_own_loop(self) -> bool:
        try:
            return asyncio.get_running_loop() is self.resources.loop
        except RuntimeError:
            return False
