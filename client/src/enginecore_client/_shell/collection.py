"""The garbage collector, while bursts of outputs are read and handed out."""

import gc
import os
import threading
from typing import Final, Self


class GarbageCollector:
    """The process's garbage collector, which several clients may have rest at the same time.

    Whoever wakes it first wakes it: a client that is in a burst whenever another one leaves its own
    would else keep it from running at all.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._resting = False

    def rest(self) -> None:
        """Stop it, if it is on."""
        with self._lock:
            if gc.isenabled():
                self._resting = True
                gc.disable()

    def wake(self) -> None:
        """Start it again, if it was stopped by `rest`."""
        with self._lock:
            if self._resting:
                self._resting = False
                gc.enable()

    def forked(self) -> None:
        """Start it again in a child whose parent was in a burst: the thread that would do so is
        the parent's."""
        self._lock = threading.Lock()
        self.wake()


COLLECTOR: Final = GarbageCollector()
os.register_at_fork(after_in_child=COLLECTOR.forked)


class NoCollection:
    """Has the collector rest for the length of a `with` block, if it is on.

    Each output of a burst has a list of tokens, and all of them live until their readers run: the
    collector, which runs every few hundred lists, would go through the same ones again and again.
    It is the whole process's: blocks take milliseconds, and a `gc.disable()` of another thread
    during one does not last.
    """

    __slots__ = ()

    def __enter__(self) -> Self:
        COLLECTOR.rest()
        return self

    def __exit__(self, *exc: object) -> None:
        COLLECTOR.wake()
