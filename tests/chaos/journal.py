"""What clients and engines write down: an event per line, in the file before anything follows
from it, so that it outlives whoever wrote it."""

import os
from pathlib import Path

import msgspec


class Sent(msgspec.Struct, tag=True):
    """A client is about to send a request.

    `plan` is what its caller is going to do with it: "read" it to its end, "leave" it early, or
    wait no longer than a "deadline". `retry` says whether it may be sent again.
    """

    id: str
    prompt: list[int]
    max_tokens: int
    plan: str
    retry: bool


class Ended(msgspec.Struct, tag=True):
    """A request has ended for its caller.

    `how` is "finished", "left", "failed" with one of the client's errors, or "broke" with any
    other. `detail` is the finish reason or the name of the error.
    """

    id: str
    tokens: list[int]
    how: str
    detail: str = ""


class Added(msgspec.Struct, tag=True):
    """An engine got a request; `id` is the engine's name for it."""

    id: str


class Computed(msgspec.Struct, tag=True):
    """An engine is about to send the last of a request's tokens."""

    id: str
    tokens: int


class Dropped(msgspec.Struct, tag=True):
    """An engine was told to forget a request that it had not finished."""

    id: str


Event = Sent | Ended | Added | Computed | Dropped

_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Event)


class Journal:
    """A file that events are added to, each with one write."""

    def __init__(self, file: Path) -> None:
        self._descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, event: Event) -> None:
        """Add an event; it is in the file when this returns."""
        os.write(self._descriptor, _ENCODER.encode(event) + b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def read_journal(file: Path) -> list[Event]:
    """Return the events of a file, in order."""
    return [_DECODER.decode(line) for line in file.read_bytes().splitlines()]
