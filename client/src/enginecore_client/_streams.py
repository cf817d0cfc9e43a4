"""The outputs of one request, as the callers of `generate` read them."""

from collections.abc import Callable, Coroutine
from typing import Any

from enginecore_client._books import RequestRecord
from enginecore_client._driver import Driver
from enginecore_client._mailbox import TaskMailbox, ThreadMailbox
from enginecore_client.errors import EngineCoreError
from enginecore_wire.outputs import EngineCoreOutput, FinishReason
from enginecore_wire.requests import EngineCoreRequest


class SyncStream:
    """The outputs of one request, as an iterator of EngineCoreOutput.

    It ends after the output with a `finish_reason`. Closing or dropping it early aborts the
    request.
    """

    def __init__(
        self,
        mailbox: ThreadMailbox[Any],
        record: RequestRecord,
        abort: Callable[[RequestRecord], None],
        drop: Callable[[RequestRecord], None],
    ) -> None:
        self._mailbox = mailbox
        self._record = record
        self._abort = abort
        self._drop = drop
        self._ended = False

    @property
    def request_id(self) -> str:
        """Return the request's id."""
        return self._record.request_id

    @property
    def engine(self) -> int | None:
        """Return the rank of the engine the request was given to."""
        return self._record.engine

    def __iter__(self) -> "SyncStream":
        return self

    def __next__(self) -> EngineCoreOutput:
        if self._ended:
            raise StopIteration
        item = self._mailbox.get()
        if isinstance(item, BaseException):
            self._ended = True
            raise item
        if item is None:
            self._ended = True
            return EngineCoreOutput(self.request_id, [], finish_reason=FinishReason.ABORT)
        output: EngineCoreOutput = item
        self._ended = output.finish_reason is not None
        return output

    def close(self) -> None:
        """Abort the request unless it has ended."""
        if not self._ended:
            self._ended = True
            self._abort(self._record)

    def __enter__(self) -> "SyncStream":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not self._ended:
            self._drop(self._record)


class AsyncStream:
    """The outputs of one request, as an async iterator of EngineCoreOutput.

    It ends after the output with a `finish_reason`. Leaving it early, closing it, cancelling the
    task that reads it, or dropping it aborts the request.
    """

    def __init__(
        self,
        driver: Driver,
        connect: Callable[[], Coroutine[Any, Any, None]],
        request: EngineCoreRequest,
        timeout: float | None,
        *,
        retry: bool,
    ) -> None:
        self._driver = driver
        self._connect = connect
        self._request = request
        self._timeout = timeout
        self._retry = retry
        self._mailbox: TaskMailbox[Any] = TaskMailbox()
        self._record: RequestRecord | None = None
        self._ended = False

    @property
    def request_id(self) -> str:
        """Return the request's id; "" until a request without one was sent."""
        return self._record.request_id if self._record else self._request.request_id

    @property
    def engine(self) -> int | None:
        """Return the rank of the engine the request was given to; None until it was sent."""
        return self._record.engine if self._record else None

    def start(self) -> None:
        """Send the request; an error is raised by the first read."""
        try:
            self._record = self._driver.add(
                self._request, self._mailbox, self._timeout, retry=self._retry
            )
        except EngineCoreError as error:
            self._mailbox.put(error)

    def __aiter__(self) -> "AsyncStream":
        return self

    async def __anext__(self) -> EngineCoreOutput:
        if self._ended:
            raise StopAsyncIteration
        try:
            if self._record is None:
                await self._connect()
                if self._record is None:
                    self.start()
            item = await self._mailbox.get()
        except BaseException:
            self.abort()
            raise
        if isinstance(item, BaseException):
            self._ended = True
            raise item
        if item is None:
            self._ended = True
            return EngineCoreOutput(self.request_id, [], finish_reason=FinishReason.ABORT)
        output: EngineCoreOutput = item
        self._ended = output.finish_reason is not None
        return output

    async def aclose(self) -> None:
        """Abort the request unless it has ended."""
        self.abort()

    def abort(self) -> None:
        """Abort the request unless it has ended."""
        if not self._ended:
            self._ended = True
            if self._record is not None:
                self._driver.abort_record(self._record)

    async def __aenter__(self) -> "AsyncStream":
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.abort()

    def __del__(self) -> None:
        if not self._ended and self._record is not None:
            self._driver.drop_record(self._record)
