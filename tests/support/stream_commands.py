"""What a benchmark tells a process with a client, and what that answers."""

import sys
import time
from pathlib import Path

import msgspec


class Flood(msgspec.Struct, tag=True):
    """Read `streams` streams of `tokens` outputs each, all at once, from an engine that does not
    wait for anybody."""

    streams: int
    tokens: int


class Paced(msgspec.Struct, tag=True):
    """The same from an engine that takes `step` seconds for a step."""

    streams: int
    tokens: int
    step: float


class Adds(msgspec.Struct, tag=True):
    """Make and send `count` requests with long prompts, one after another."""

    count: int


class Trips(msgspec.Struct, tag=True):
    """Make and send `count` requests of one token, each once the one before is answered."""

    count: int


Command = Flood | Paced | Adds | Trips


class Took(msgspec.Struct):
    """What a command took.

    `wall` are seconds; `cpu` are the seconds that the process used, with all its threads. `p50` and
    `p99` are seconds of one trip, 0 for other commands. `peak` is the most memory the process has
    held so far, in bytes.
    """

    wall: float
    cpu: float
    p50: float = 0.0
    p99: float = 0.0
    peak: int = 0


class Watch:
    """A stopwatch for the wall's time and the processor's, started when it is made."""

    def __init__(self) -> None:
        self._cpu = time.process_time()
        self._wall = time.perf_counter()

    def took(self) -> Took:
        """Return what passed so far."""
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        return Took(wall, cpu, peak=memory("VmHWM"))


def memory(field: str) -> int:
    """Return a figure of this process's memory in bytes: VmRSS now, VmHWM at most."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition(f"{field}:")[2].split()[0]) * 1024


def read_command() -> Command | None:
    """Return the next command on standard input, None when there are no more; blocks."""
    line = sys.stdin.readline()
    return _DECODER.decode(line) if line else None


_DECODER = msgspec.json.Decoder(Command)
