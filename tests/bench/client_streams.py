"""Our asyncio client against vLLM's own, with the smallest demultiplexer that gives it streams.

Both are bound to the same engine, which answers with frames it made beforehand; both run under
vLLM's Python with the same libraries, on asyncio's loop, and are read by the same consumer. They
take turns, and the medians of their runs are compared. docs/performance.md says more.

Each ratio is vLLM's figure against ours, so that more than 1 says that ours is the better one.
"""

import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from support.measures import Measure, NotMeasured
from support.stream_commands import Adds, Command, Flood, Paced, Took, Trips
from support.stream_processes import BARE, StreamProcesses, cost_of_import
from support.vllm_environment import model_dir, vllm_python

RUNS = 5
FLOODS = (Flood(1, 20_000), Flood(64, 1000), Flood(1024, 100))
PACES = (Paced(64, 100, 0.01), Paced(1024, 30, 0.05))
ADDS = Adds(1000)
TRIPS = Trips(1000)

MANY = 64
FASTER = 1.5
NOT_SLOWER = 1.0
IMPORTS = {
    "ours": "from enginecore_client import AsyncMPClient",
    "vllm": "from vllm.v1.engine.core_client import AsyncMPClient",
}
MIB = 1 << 20


class Comparison(NamedTuple):
    """What `RUNS` runs of both clients took."""

    ours: list[Took]
    vllm: list[Took]

    def medians(self, field: str) -> tuple[float, float]:
        """Return the median of one figure, ours and vLLM's."""
        ours, vllm = (statistics.median(getattr(took, field) for took in each) for each in self)
        return ours, vllm


def compare(processes: StreamProcesses, command: Command, ours: str = "ours") -> Comparison:
    """Have two clients carry out a command in turns, each of them first as often."""
    took: dict[str, list[Took]] = {ours: [], "vllm": []}
    for number in range(RUNS):
        for kind in sorted(took, reverse=bool(number % 2)):
            took[kind].append(processes.ask(kind, command))
    return Comparison(took[ours], took["vllm"])


def print_pair(
    name: str,
    pair: tuple[float, float],
    show: Callable[[float], tuple[float, str]],
    bar: float | None = NOT_SLOWER,
) -> None:
    """Print both sides' figure and their ratio, where less is better."""
    for side, value in zip(("ours", "vLLM"), pair, strict=True):
        shown, unit = show(value)
        Measure(f"{name}, {side}", shown, unit).print()
    ours, vllm = pair
    Measure(f"{name}, ratio", vllm / ours, "x", bar, "at_least").print()


def print_rate(name: str, compared: Comparison, count: int, bar: float | None = NOT_SLOWER) -> None:
    """Print how many of something each side did per second, and per second of its processor."""
    print_pair(f"{name} per second", compared.medians("wall"), lambda s: (count / s, "/s"), bar)
    ours, vllm = compared.medians("cpu")
    Measure(f"{name} per CPU-second, ratio", vllm / ours, "x").print()


def measure_streams(processes: StreamProcesses) -> None:
    """Measure outputs delivered to their consumers, and the engine's own speed."""
    for flood in FLOODS:
        count = flood.streams * flood.tokens
        name = f"outputs of {flood.streams} stream{'s' if flood.streams > 1 else ''}"
        compared = compare(processes, flood)
        print_rate(name, compared, count, FASTER if flood.streams >= MANY else NOT_SLOWER)
        bare = min(processes.ask(BARE, flood).wall for _ in range(RUNS))
        fastest = min(took.wall for each in compared for took in each)
        Measure(f"{name}: engine's speed to the faster client's", fastest / bare, "x", 1.0,
                "at_least").print()  # fmt: skip
    for pace in PACES:
        count = pace.streams * pace.tokens
        name = f"CPU per output, {pace.streams} streams, a step each {pace.step * 1000:.0f} ms"
        used = compare(processes, pace).medians("cpu")
        print_pair(name, (used[0] / count, used[1] / count), lambda s: (s * 1e6, "us"), None)


def measure_requests(processes: StreamProcesses) -> None:
    """Measure requests sent, and their round trip."""
    alike = compare(processes, ADDS, "trusting")
    print_rate("ADDs of 1,024 tokens, checked by callers", alike, ADDS.count)
    print_rate("ADDs of 1,024 tokens, checked by ours", compare(processes, ADDS), ADDS.count, None)
    trips = compare(processes, TRIPS)
    for field in ("p50", "p99"):
        print_pair(f"round trip, {field}", trips.medians(field), lambda s: (s * 1e6, "us"))


def measure_imports(python: Path) -> None:
    """Measure what the import of each client costs."""
    costs: Mapping[str, tuple[float, int]] = {
        side: cost_of_import(python, statement) for side, statement in IMPORTS.items()
    }
    (ours, our_memory), (vllm, its_memory) = costs["ours"], costs["vllm"]
    print_pair("import", (ours, vllm), lambda s: (s, "s"))
    print_pair("memory after import", (our_memory, its_memory), lambda b: (b / MIB, "MiB"))


def main() -> None:
    """Measure and print."""
    python = vllm_python()
    if python is None or not model_dir().exists():
        NotMeasured("needs `make test-vllm` once").print()
        return
    with StreamProcesses(python) as processes:
        measure_streams(processes)
        measure_requests(processes)
        last = compare(processes, FLOODS[-1])
        print_pair("memory at most", last.medians("peak"), lambda b: (b / MIB, "MiB"))
    measure_imports(python)


if __name__ == "__main__":
    main()
