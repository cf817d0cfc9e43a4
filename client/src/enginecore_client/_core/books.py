"""What the client keeps about unfinished requests and calls."""

import os
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import msgspec

from enginecore_wire.requests import EngineCoreRequest

SUFFIX_BYTES = 4
"""Random bytes behind a request id: as hex, the eight characters vLLM appends too."""

_SUFFIX_MASK = (1 << 8 * SUFFIX_BYTES) - 1


class Ids:
    """Random names: suffixes of request ids, call ids, routing ids, nonces."""

    def __init__(self, randbytes: Callable[[int], bytes] = os.urandom) -> None:
        self._randbytes = randbytes
        self._suffixes = count(int.from_bytes(randbytes(SUFFIX_BYTES), "big"))

    def internal(self, request_id: str) -> str:
        """Return the id under which the engine knows a request.

        Suffixes count up from a random one: no two are the same in one client, and to ask the
        system for bytes each time would take longer than all else that is done for an id.
        """
        return f"{request_id}-{next(self._suffixes) & _SUFFIX_MASK:08x}"

    def request(self) -> str:
        """Return an id for a request whose caller gave none."""
        return self._randbytes(8).hex()

    def call(self) -> int:
        """Return a call id: 63 bits, so that vLLM's reserved -1 and -2 never appear."""
        return int.from_bytes(self._randbytes(8), "little") >> 1

    def routing(self) -> bytes:
        """Return the routing id of a new pair of sockets."""
        return self._randbytes(16)

    def nonce(self) -> bytes:
        """Return the nonce of a new session."""
        return self._randbytes(8)


class RequestRecord(msgspec.Struct, eq=False):
    """One unfinished request.

    `sink` is where its outputs go: the shell's stream, or None for get_output. Times are
    seconds of the monotonic clock. `token_at` is when its last token was, as far as metrics
    were told. `request` is kept for records that may be sent again.
    `engine` is the rank it was last given to. `stopped` says that the client ended it because its
    text reached a stop string.
    """

    request_id: str
    internal_id: str
    sink: Any
    prompt_tokens: int
    added_at: float
    deadline: float | None = None
    request: EngineCoreRequest | None = None
    tokens: int = 0
    attempts: int = 0
    sent: bool = False
    link: int | None = None
    engine: int | None = None
    stopped: bool = False
    token_at: float | None = None


class CallRecord(msgspec.Struct, eq=False):
    """One pending utility call; `future` is the shell's."""

    call_id: int
    method: str
    future: Any
    deadline: float | None = None
    sent: bool = False
    link: int = 0


class Outgoing(msgspec.Struct, eq=False):
    """Frames for an engine's input, and the record to mark once they are handed to ZMQ."""

    frames: Sequence[bytes | memoryview]
    record: RequestRecord | CallRecord | None = None
