"""The outputs of one request, as the callers of `generate` read them."""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any

from enginecore_client._core.books import RequestRecord
from enginecore_client._faces.outputs import GeneratedOutput, Whole, generated
from enginecore_client._faces.sequences import Mailbox, TextTokenizer, sequences_of
from enginecore_client._shell.driver import Driver
from enginecore_client._shell.loop import LoopResources
from enginecore_client._shell.mailbox import TaskMailbox, ThreadMailbox
from enginecore_client.errors import EngineCoreError, ProtocolMismatchError
from enginecore_wire.outputs import EngineCoreOutput, FinishReason
from enginecore_wire.requests import EngineCoreRequest, OutputKind

Add = Callable[[EngineCoreRequest, Any], RequestRecord]
"""Sends a request whose outputs go to a sink."""

Abort = Callable[[RequestRecord], None]
"""Ends a request."""


class _Stream(ABC):
    """What both streams have in common: their sequences, and when all of them have ended.

    Args:
        request: what `generate` was asked for.
        tokenizer: for text and stop strings, if the client has one.
        mailbox: what is read.
        drop: ends a request soon; may be called anywhere.
    """

    _ended = True
    """Nothing has to be aborted; so until the constructor is through."""

    def __init__(
        self,
        request: EngineCoreRequest,
        tokenizer: TextTokenizer | None,
        mailbox: Mailbox,
        drop: Abort,
    ) -> None:
        self._name = request.request_id
        self._sequences = sequences_of(request, tokenizer, mailbox, drop)
        self._ended = False
        self._drop = drop
        self._left = len(self._sequences)
        self._sink = mailbox if tokenizer is None and self._left == 1 else None
        self._wholes: list[Whole] | None = None
        params = request.sampling_params
        self._kind = OutputKind.DELTA if params is None else params.output_kind
        if self._kind != OutputKind.DELTA:
            self._wholes = [Whole(self._kind) for _ in self._sequences]

    @property
    def request_id(self) -> str:
        """Return the request's id; "" until a request without one was sent."""
        record = self._sequences[0].record
        return record.request_id if record else self._name

    @property
    def engine(self) -> int | None:
        """Return the rank of the engine that got the (first) sequence; None until it was sent."""
        record = self._sequences[0].record
        return record.engine if record else None

    @property
    def output_kind(self) -> OutputKind:
        """Return how much each output holds."""
        return self._kind

    @property
    def n(self) -> int:
        """Return how many sequences there are."""
        return len(self._sequences)

    def _start(self, add: Add) -> None:
        """Send every sequence, or none; all have one name, be it the one that the first got."""
        try:
            for sequence in self._sequences:
                if sequence.index:
                    sequence.request.request_id = self.request_id
                sink = sequence if self._sink is None else self._sink
                sequence.record = add(sequence.request, sink)
        except BaseException:
            self._end(self._abort)
            raise

    def _take(self, item: Any) -> EngineCoreOutput | None:
        """Return what the caller gets after an item of the mailbox; None for nothing yet.

        Raises:
            EngineCoreError: a sequence ended with it; the others are aborted.
        """
        if isinstance(item, BaseException):
            self._end(self._abort)
            raise item
        if item is None:
            item = EngineCoreOutput(self.request_id, [], finish_reason=FinishReason.ABORT)
        output: EngineCoreOutput = item
        if output.finish_reason is not None:
            self._left -= 1
            self._ended = self._left == 0
        if self._wholes is None:
            return output
        whole = output if isinstance(output, GeneratedOutput) else generated(output, 0)
        try:
            return self._wholes[whole.index].add(whole)
        except ValueError as error:
            self._end(self._abort)
            raise ProtocolMismatchError(f"outputs of the engine: {error}") from error

    @abstractmethod
    def _abort(self, record: RequestRecord) -> None:
        """End a request now; of the thread or loop that reads."""

    def _end(self, abort: Abort) -> None:
        """Have every sequence that was sent ended; ended ones ignore it."""
        if self._ended:
            return
        self._ended = True
        for sequence in self._sequences:
            if sequence.record is not None:
                abort(sequence.record)

    def __del__(self) -> None:
        if not self._ended:
            self._end(self._drop)


class SyncStream(_Stream):
    """The outputs of one request, as an iterator of EngineCoreOutput.

    It ends after the last output of every sequence, which has a `finish_reason`. Closing or
    dropping it early aborts the request. Threads that read the same one get an output each in turn.
    """

    def __init__(
        self,
        request: EngineCoreRequest,
        tokenizer: TextTokenizer | None,
        abort: Abort,
        drop: Abort,
        mailbox: ThreadMailbox[Any] | None = None,
    ) -> None:
        self._mailbox: ThreadMailbox[Any] = ThreadMailbox() if mailbox is None else mailbox
        self._end_now = abort
        self._reading = threading.Lock()
        super().__init__(request, tokenizer, self._mailbox, drop)

    def start(self, add: Add) -> None:
        """Send the request; nothing may be delivered before this returns.

        Raises:
            EngineCoreError: a sequence was not taken; none is under way.
        """
        self._start(add)

    def __iter__(self) -> "SyncStream":
        return self

    def __next__(self) -> EngineCoreOutput:
        with self._reading:
            while not self._ended:
                output = self._take(self._mailbox.get())
                if output is not None:
                    return output
        raise StopIteration

    def close(self) -> None:
        """Abort the request unless it has ended."""
        self._end(self._abort)

    def _abort(self, record: RequestRecord) -> None:
        self._end_now(record)

    def __enter__(self) -> "SyncStream":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class AsyncStream(_Stream):
    """The outputs of one request, as an async iterator of EngineCoreOutput.

    It ends after the last output of every sequence, which has a `finish_reason`. Leaving it
    early, closing it, cancelling the task that reads it, or dropping it aborts the request. Tasks
    that read the same one get an output each in turn.
    """

    def __init__(
        self,
        driver: Driver,
        home: LoopResources,
        connect: Callable[[], Coroutine[Any, Any, None]],
        request: EngineCoreRequest,
        tokenizer: TextTokenizer | None,
        timeout: float | None,
        *,
        retry: bool,
    ) -> None:
        self._mailbox: TaskMailbox[Any] = TaskMailbox()
        self._items = self._mailbox.items
        self._driver = driver
        self._home = home
        self._connect = connect
        self._timeout = timeout
        self._retry = retry
        self._started = False
        self._failure: EngineCoreError | None = None
        super().__init__(request, tokenizer, self._mailbox, driver.drop_record)

    def start(self) -> None:
        """Send the request; an error is raised by the first read."""
        self._started = True
        try:
            self._start(self._add)
        except EngineCoreError as error:
            self._failure = error

    def _abort(self, record: RequestRecord) -> None:
        self._driver.abort_record(record)

    def _add(self, request: EngineCoreRequest, sink: Any) -> RequestRecord:
        return self._driver.add(request, sink, self._timeout, retry=self._retry)

    def __aiter__(self) -> "AsyncStream":
        return self

    async def __anext__(self) -> EngineCoreOutput:
        items = self._items
        while True:
            while not items:
                if not self._started or self._ended:
                    await self._begin()
                    continue
                loop = self._home.loop
                if loop is not asyncio.get_running_loop():
                    await self._connect()  # takes the client along
                    continue
                waiter = self._mailbox.arrival(loop)
                try:
                    await waiter
                except BaseException:
                    self._mailbox.left(waiter)
                    self.abort()
                    raise
            item: EngineCoreOutput = items.popleft()
            try:
                if item.finish_reason is None and self._wholes is None:
                    return item
            except AttributeError:
                pass  # it is an end instead
            output = self._take(item)
            if self._ended:
                self._mailbox.release()
            if output is not None:
                return output

    async def _begin(self) -> None:
        """Send the request, once the client is connected.

        Raises:
            StopAsyncIteration: it has ended.
            EngineCoreError: it was not taken.
        """
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        if self._ended:
            raise StopAsyncIteration
        try:
            await self._connect()
            if not self._started:
                self.start()
        except BaseException:
            self.abort()
            raise

    async def aclose(self) -> None:
        """Abort the request unless it has ended."""
        self.abort()

    def abort(self) -> None:
        """Abort the request unless it has ended."""
        self._end(self._abort)

    def _end(self, abort: Abort) -> None:
        super()._end(abort)
        self._items.clear()
        self._mailbox.release()

    async def __aenter__(self) -> "AsyncStream":
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.abort()
