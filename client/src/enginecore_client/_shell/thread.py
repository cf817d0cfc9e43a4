"""The sockets of a sync client in its reader thread."""

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import zmq

from enginecore_client._shell.background import BackgroundResources
from enginecore_client._shell.driver import SWEEP_SECONDS, Driver
from enginecore_client._sockets.resources import Socket

_JOIN_SECONDS: Final = 5.0


class ThreadResources(BackgroundResources):
    """A reader thread, its sockets, and everything to end them once; holds no client.

    `lock` guards the driver: callers add and abort under it, the thread reads under it, and
    only the thread touches ZMQ's sockets. `changed` (on the same lock) is notified when
    something happened that somebody may wait for.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.failure: BaseException | None = None
        self._callbacks: dict[Socket, Callable[[], None]] = {}
        self._poller = zmq.Poller()
        self._posted: deque[Callable[[], None]] = deque()
        self._context: zmq.Context[Any] = zmq.Context(io_threads=0)
        self._shutdown, self._shutdown_read = self._pipe("inproc://shutdown")
        self._waker, self._waker_read = self._pipe("inproc://wake")
        self._awake = False
        self._abandoned = False
        self._thread = threading.Thread(target=self._run, name="enginecore-client", daemon=True)

    def start(self, driver: Driver) -> None:
        """Start the thread."""
        self.driver = driver
        self._thread.start()

    def __call__(self) -> None:
        """End the thread, which closes its sockets; from whatever thread. In a fork there is
        neither."""
        if self._shutdown.closed or (self.driver is not None and self.driver.forked):
            return
        if self._thread.ident is None:
            self._end_reader()
        else:
            with contextlib.suppress(zmq.Again):
                self._shutdown.send(b"", zmq.NOBLOCK)
            if threading.current_thread() is self._thread:
                self._abandoned = True
                return
            launcher = self.driver.launcher if self.driver is not None else None
            self._thread.join(_JOIN_SECONDS + (launcher.patience if launcher else 0.0))
            self._abandoned = True
            if self._thread.is_alive():
                return  # it waits for a lock that is held here, and ends the rest once it has it
        self._end_callers()

    def watch(self, socket: Socket, callback: Callable[[], None]) -> None:
        """Call `callback` when `socket` has something to read."""
        self._callbacks[socket] = callback
        self._poller.register(socket, zmq.POLLIN)

    def unwatch(self, socket: Socket) -> None:
        """Stop waiting for `socket`."""
        if self._callbacks.pop(socket, None) is not None:
            self._poller.unregister(socket)

    def again(self, callback: Callable[[], None]) -> None:
        """Do nothing: a poll reports what is left to read."""

    def post(self, callback: Callable[[], None]) -> None:
        """Call `callback` in the thread, at the next sweep at the latest; from any thread.

        The garbage collector may call this while its thread holds any lock, so it never waits.
        """
        self._posted.append(callback)
        if self.lock.acquire(blocking=False):
            try:
                self.wake()
            finally:
                self.lock.release()

    def check_caller(self) -> None:
        """Refuse to have the thread wait for what it has to do itself.

        Raises:
            RuntimeError: it asks, in a function of the application that the client calls.
        """
        if threading.current_thread() is self._thread:
            raise RuntimeError(
                "called by the client's own thread, which would wait for itself: a tokenizer or "
                "load_score must not wait for its client"
            )

    def wake(self) -> None:
        """Have the thread carry out what the core wants; the lock is held."""
        if not self._awake and self.failure is None and not self._waker.closed:
            self._awake = True
            with contextlib.suppress(zmq.Again):
                self._waker.send(b"", zmq.NOBLOCK)

    def _pipe(self, name: str) -> tuple[Socket, Socket]:
        read: Socket = self._context.socket(zmq.PAIR)
        read.bind(name)
        write: Socket = self._context.socket(zmq.PAIR)
        write.connect(name)
        return write, read

    def _run(self) -> None:
        driver = self.driver
        assert driver is not None
        try:
            with self.lock:
                driver.start()
            self._read(driver)
        except BaseException as error:
            self.failure = error
            raise
        finally:
            self._end_reader()
            if self._abandoned:
                self._end_callers()

    def _read(self, driver: Driver) -> None:
        self._poller.register(self._shutdown_read, zmq.POLLIN)
        self._poller.register(self._waker_read, zmq.POLLIN)
        sweep_at = driver.clock() + SWEEP_SECONDS
        while True:
            left = max(0.0, sweep_at - driver.clock())
            ready = [socket for socket, _ in self._poller.poll(round(left * 1000))]
            if self._shutdown_read in ready:
                return
            with self.lock:
                if self._waker_read in ready:
                    self._waker_read.recv(zmq.NOBLOCK)
                    self._awake = False
                    driver.pump()
                for socket in ready:
                    callback = self._callbacks.get(socket)
                    if callback is not None:
                        callback()
                if driver.clock() >= sweep_at:
                    sweep_at = driver.clock() + SWEEP_SECONDS
                    driver.tick()
                while self._posted:
                    self._posted.popleft()()

    def _end_reader(self) -> None:
        with self.lock:
            self._posted.clear()
            if self.driver is not None:
                self.driver.shut(self.failure)
            self._shutdown_read.close(0)
            self._waker_read.close(0)

    def _end_callers(self) -> None:
        with self.lock:
            self._shutdown.close(0)
            self._waker.close(0)
        self._context.term()
