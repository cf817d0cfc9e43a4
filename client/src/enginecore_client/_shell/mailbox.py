"""Where outputs wait until somebody takes them: one kind for threads, one for tasks.

Neither bounds what it holds: a stream is bounded by its request's max_tokens, get_output by the
requests in flight. Putting never waits, so one slow reader holds up nobody else.
"""

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from enginecore_client.errors import ClientClosedError, EngineCoreError

T = TypeVar("T")

IDLE_SECONDS: Final = 0.05
"""How often a stream whose engine has nothing to compute looks whether that changed."""


class ThreadMailbox(Generic[T]):
    """Items put by one thread and taken by others."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._process = os.getpid()
        self._condition = threading.Condition()
        self._end: EngineCoreError | None = None

    def __bool__(self) -> bool:
        """Say whether an item, or the end, can be had without waiting."""
        return bool(self._items) or self._end is not None

    def put(self, item: T) -> None:
        """Add an item."""
        with self._condition:
            self._items.append(item)
            self._condition.notify()

    def report(self, error: EngineCoreError) -> None:
        """Add an error that is not the end; an older unread one it stands for goes."""
        with self._condition:
            drop_stale(self._items, error)
            self._items.append(error)
            self._condition.notify()

    def finish(self, error: EngineCoreError) -> None:
        """Let every reader raise `error` once the items are gone."""
        with self._condition:
            self._end = error
            self._condition.notify_all()

    def get(self, timeout: float | None = None) -> T:
        """Return the oldest item, waiting for one.

        Raises:
            TimeoutError: none came in `timeout` seconds.
            EngineCoreError: nothing will come any more.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._condition:
            while not self._items:
                if self._end is not None:
                    raise self._end.again()
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError
                if os.getpid() != self._process:
                    raise ClientClosedError("this process is a fork of the client's: nothing comes")
                self._condition.wait(None if left is None else min(left, threading.TIMEOUT_MAX))
            item: T = self._items.popleft()
            return item


class StepMailbox(ThreadMailbox[Any]):
    """Items of a stream whose reader computes them.

    Args:
        step: computes one step; False when there was nothing to compute.
    """

    def __init__(self, step: Callable[[], bool]) -> None:
        super().__init__()
        self._step = step

    def get(self, timeout: float | None = None) -> Any:
        """Return the oldest item, computing until there is one; see ThreadMailbox."""
        end = None if timeout is None else time.monotonic() + timeout
        pause = 0.0
        while True:
            try:
                return super().get(pause)
            except TimeoutError:
                if end is not None and time.monotonic() >= end:
                    raise
            pause = 0.0 if self._step() else IDLE_SECONDS


class TaskMailbox(Generic[T]):
    """Items put by a loop's callbacks and taken by its tasks.

    Attributes:
        items: what was put; whoever finds one there may take it without waiting.
        put: adds an item. While nobody waits it is the deque's own `append`: most outputs come
            in bursts, and a method in between would cost as much again.
    """

    __slots__ = ("_end", "_others", "_waiter", "items", "put")

    def __init__(self) -> None:
        self.items: deque[Any] = deque()
        self.put: Callable[[Any], None] = self.items.append
        self._waiter: asyncio.Future[None] | None = None
        self._others: deque[asyncio.Future[None]] = deque()
        self._end: EngineCoreError | None = None

    def report(self, error: EngineCoreError) -> None:
        """Add an error that is not the end; an older unread one it stands for goes."""
        drop_stale(self.items, error)
        self.put(error)

    def finish(self, error: EngineCoreError) -> None:
        """Let every reader raise `error` once the items are gone."""
        self._end = error
        self.release()

    def release(self) -> None:
        """Wake everybody who waits, whether there is something for them or not."""
        while self._waiter is not None:
            self._wake()

    async def get(self) -> T:
        """Return the oldest item, waiting for one. Cancelling it loses nothing.

        Raises:
            EngineCoreError: nothing will come any more.
        """
        while not self.items:
            if self._end is not None:
                raise self._end.again()
            waiter = self.arrival(asyncio.get_running_loop())
            try:
                await waiter
            except asyncio.CancelledError:
                self.left(waiter)
                raise
        item: T = self.items.popleft()
        return item

    def arrival(self, loop: asyncio.AbstractEventLoop | None) -> asyncio.Future[None]:
        """Return a future that is done once an item came, which somebody else may have taken.

        Args:
            loop: of the task that awaits it; None to look for it, which takes longer.
        """
        waiter: asyncio.Future[None] = asyncio.Future(loop=loop)
        if self._waiter is None:
            self._waiter = waiter
            self.put = self._put_and_wake
        else:
            self._others.append(waiter)
        return waiter

    def left(self, waiter: asyncio.Future[None]) -> None:
        """Take note that nobody awaits an `arrival` any more: its item is another reader's."""
        if waiter is self._waiter:
            self._next()
        elif waiter in self._others:
            self._others.remove(waiter)
        elif self.items:
            self._wake()

    def abandon(self) -> None:
        """Forget who waited: their loop is closed."""
        self._waiter = None
        self._others.clear()
        self.put = self.items.append

    def _put_and_wake(self, item: Any) -> None:
        self.items.append(item)
        waiter = self._waiter
        if self._others or waiter is None:
            self._wake()
            return
        # One waits, as nearly always, and each step of an engine comes through here for each of
        # its streams: so without the calls of _wake.
        self._waiter = None
        self.put = self.items.append
        _woken(waiter)

    def _wake(self) -> None:
        """Wake who has waited longest."""
        while (waiter := self._waiter) is not None:
            self._next()
            if _woken(waiter):
                return

    def _next(self) -> None:
        """Let the next one be who is woken first."""
        if self._others:
            self._waiter = self._others.popleft()
        else:
            self._waiter = None
            self.put = self.items.append


class Signal:
    """Wakes the tasks of a loop that wait for a change."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    def notify(self) -> None:
        """Wake everybody who waits."""
        for waiter in self._waiters:
            _woken(waiter)

    async def wait(self, timeout: float) -> None:
        """Wait for `notify`, at most `timeout` seconds."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await asyncio.wait([waiter], timeout=timeout)
        finally:
            self._waiters.discard(waiter)


def _woken(waiter: asyncio.Future[None]) -> bool:
    """Wake who awaits `waiter`; False if nobody does any more, as its loop was closed."""
    if waiter.done():
        return False
    try:
        waiter.set_result(None)
    except RuntimeError:
        return False
    return True


def drop_stale(items: deque[Any], error: EngineCoreError) -> None:
    """Make room for an engine's loss: an older loss of that engine nobody read is dropped."""
    if not error.request_ids:
        for old in list(items):
            if type(old) is type(error) and not old.request_ids and old.engine == error.engine:
                items.remove(old)
