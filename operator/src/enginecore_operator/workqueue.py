"""A queue of keys: each at most once, never worked on twice at a time, with delays."""

import asyncio
from collections import deque
from typing import Final, NamedTuple

FIRST_DELAY: Final = 0.2
LONGEST_DELAY: Final = 30.0


class Key(NamedTuple):
    """One object to reconcile."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


class WorkQueue:
    """Keys to work on, in the order they came; used on one event loop.

    A key added while it is worked on is worked on once more afterwards.
    """

    def __init__(self) -> None:
        self._ready: deque[Key] = deque()
        self._waiting: set[Key] = set()
        self._active: set[Key] = set()
        self._again: set[Key] = set()
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._failures: dict[Key, int] = {}
        self._news = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting) + len(self._again)

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing is worked on; delayed keys do not count."""
        return not self._waiting and not self._active

    def add(self, key: Key) -> None:
        """Work on a key soon."""
        self._cancel_timer(key)
        if key in self._active:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._ready.append(key)
            self._news.set()

    def add_after(self, key: Key, seconds: float) -> None:
        """Work on a key after a delay, or earlier if something else asks for it."""
        if seconds <= 0:
            self.add(key)
            return
        if key in self._waiting or key in self._again:
            return
        loop = asyncio.get_running_loop()
        timer = self._timers.get(key)
        if timer is not None and timer.when() <= loop.time() + seconds:
            return
        self._cancel_timer(key)
        self._timers[key] = loop.call_later(seconds, self.add, key)

    def add_failed(self, key: Key) -> float:
        """Work on a key again after its back-off; return the delay in seconds."""
        count = self._failures.get(key, 0)
        self._failures[key] = count + 1
        delay = min(FIRST_DELAY * 2.0 ** min(count, 16), LONGEST_DELAY)
        self.add_after(key, delay)
        return delay

    def forgive(self, key: Key) -> None:
        """Forget the failures of a key."""
        self._failures.pop(key, None)

    async def get(self) -> Key:
        """Take the next key; `done` must follow."""
        while not self._ready:
            self._news.clear()
            await self._news.wait()
        key = self._ready.popleft()
        self._waiting.discard(key)
        self._active.add(key)
        return key

    def done(self, key: Key) -> None:
        """End the work on a key."""
        self._active.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def clear(self) -> None:
        """Drop all that waits."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._ready.clear()
        self._waiting.clear()
        self._again.clear()
        self._failures.clear()

    def _cancel_timer(self, key: Key) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
