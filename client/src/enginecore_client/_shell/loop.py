"""The sockets of an async client on its event loop."""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from enginecore_client._shell.background import BackgroundResources
from enginecore_client._shell.driver import SWEEP_SECONDS
from enginecore_client._sockets.resources import Socket


class LoopResources(BackgroundResources):
    """Sockets on a loop, and everything to close them once; holds no client."""

    turns = True

    def __init__(self) -> None:
        super().__init__()
        self.loop: asyncio.AbstractEventLoop | None = None
        self._callbacks: dict[Socket, Callable[[], None]] = {}
        self._posted: deque[Callable[[], None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def __call__(self) -> None:
        """Close everything, from whatever thread and whatever became of the loop."""
        loop = self.loop
        if loop is not None and loop.is_running():
            try:
                loop.call_soon_threadsafe(self.close)
            except RuntimeError:
                self.close()
        else:
            self.close()

    def __del__(self) -> None:
        # The loop was closed before it came to what __call__ asked of it.
        if self.loop is None or self.loop.is_closed():
            self.close()

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait for sockets on `loop` from now on.

        Raises:
            RuntimeError: they are waited for on another loop that still runs.
        """
        if self.loop is loop:
            return
        assert self.driver is not None
        first = self.loop is None
        if self.loop is not None:
            if self.loop.is_running():
                raise RuntimeError("this client is in use on another running event loop")
            self._leave()
        self.loop = loop
        for socket, callback in self._callbacks.items():
            loop.add_reader(socket.fileno(), callback)
        if first:
            try:
                self.driver.start()
            except BaseException:
                self.close()
                raise
        self._sweep()

    def watch(self, socket: Socket, callback: Callable[[], None]) -> None:
        """Call `callback` when `socket` may have something to read."""
        self._callbacks[socket] = callback
        if self.loop is not None:
            self.loop.add_reader(socket.fileno(), callback)

    def unwatch(self, socket: Socket) -> None:
        """Stop waiting for `socket`."""
        self._callbacks.pop(socket, None)
        if self.loop is not None and not self.loop.is_closed():
            self.loop.remove_reader(socket.fileno())

    def again(self, callback: Callable[[], None]) -> None:
        """Call `callback` soon."""
        if self.loop is not None and not self.loop.is_closed():
            self.loop.call_soon(callback)

    def post(self, callback: Callable[[], None]) -> None:
        """Call `callback` on the loop, the next one if this one was left; from any thread."""
        if self.driver is not None and self.driver.core.closed:
            return
        self._posted.append(callback)
        loop = self.loop
        if loop is not None:
            with suppress(RuntimeError):  # it is closed
                loop.call_soon_threadsafe(self._catch_up, loop)

    def close(self) -> None:
        """Close everything, on the loop's own thread."""
        self._posted.clear()
        if self._timer is not None:
            self._timer.cancel()
        if self.driver is not None:
            self.driver.shut(wait=self.loop is None or not self.loop.is_running())

    def _leave(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        assert self.loop is not None
        if not self.loop.is_closed():
            for socket in self._callbacks:
                self.loop.remove_reader(socket.fileno())

    def _catch_up(self, loop: asyncio.AbstractEventLoop) -> None:
        """Do what was posted, on `loop`, unless that was left for another one."""
        while self._posted and loop is self.loop:
            self._posted.popleft()()

    def _sweep(self) -> None:
        assert self.loop is not None
        assert self.driver is not None
        if self.driver.core.closed:
            return
        self._timer = self.loop.call_later(SWEEP_SECONDS, self._sweep)
        self._catch_up(self.loop)
        self.driver.tick()
