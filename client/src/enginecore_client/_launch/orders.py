"""What other threads want a polling thread to do, and what wakes it for that."""

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator

Order = Callable[[], None]


class Orders:
    """A queue of callables behind a descriptor that is readable while there is one."""

    def __init__(self) -> None:
        self._orders: deque[Order] = deque()
        self._read, self._write = -1, -1
        self._lock = threading.RLock()

    def open(self) -> None:
        """Make the descriptor; what was put before is still there."""
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)

    def fileno(self) -> int:
        """Return what is readable after `put` and `wake`."""
        return self._read

    def put(self, order: Order) -> None:
        """Have something done; callable from any thread."""
        self._orders.append(order)
        self.wake()

    def wake(self) -> None:
        """Make the descriptor readable; callable from any thread."""
        with self._lock:
            if self._write >= 0:
                with contextlib.suppress(BlockingIOError):  # then it is readable
                    os.write(self._write, b"w")

    def take(self) -> Iterator[Order]:
        """Yield what is to be done."""
        try:
            while os.read(self._read, 1024):
                pass
        except BlockingIOError:
            pass
        while self._orders:
            yield self._orders.popleft()

    def close(self) -> None:
        """Close the descriptor."""
        with self._lock:
            for descriptor in (self._read, self._write):
                if descriptor >= 0:
                    os.close(descriptor)
            self._read, self._write = -1, -1
