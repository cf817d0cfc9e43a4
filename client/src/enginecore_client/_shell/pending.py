"""Large buffers that were handed to ZMQ and that it may still have to read.

pyzmq keeps a reference to each of them until then, so nothing here keeps memory alive. What is
kept is the knowledge: a caller who wants to write into a tensor again has to wait for it.
"""

import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import zmq

from enginecore_wire.frames import Frame

BODY_FRAMES: Final = 2
"""Type and body; frames after these are buffers of the caller's."""


class PendingMessages:
    """The messages with buffers that ZMQ has not let go of. Any thread may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._trackers: deque[zmq.MessageTracker] = deque()

    def __len__(self) -> int:
        """Return how many messages have a buffer that must not be changed yet."""
        self.free_pending_messages()
        return len(self._trackers)

    def add_pending_message(self, frames: Sequence[zmq.Frame]) -> None:
        """Take note of a message that was sent with these tracked frames."""
        with self._lock:
            self._trackers.append(zmq.MessageTracker(*frames))

    def free_pending_messages(self) -> None:
        """Forget the messages that ZMQ is through with."""
        if self._trackers:
            with self._lock:
                self._trackers = deque(t for t in self._trackers if not t.done)


def tracked(frames: Sequence[Frame]) -> tuple[list[Any], list[zmq.Frame]]:
    """Return `frames` with each large buffer as a tracked frame, and those frames.

    ZMQ copies what is small at once.
    """
    sent: list[Any] = list(frames[:BODY_FRAMES])
    large: list[zmq.Frame] = []
    for frame in frames[BODY_FRAMES:]:
        if memoryview(frame).nbytes < zmq.COPY_THRESHOLD:
            sent.append(frame)
        else:
            large.append(zmq.Frame(frame, track=True, copy=False))
            sent.append(large[-1])
    return sent, large
