"""What a benchmark measured, and the bar it is held to.

A file in tests/bench prints one line per figure with `Measure.print()`; `make bench` gathers
them into a table. The file exits 0 whatever it measured: the driver judges.
"""

import sys
from typing import Literal

import msgspec

MARK = "measure "
MARK_MISSING = "not measured: "


class Measure(msgspec.Struct, frozen=True):
    """One figure. `bar` is the most (`at_most`) or the least (`at_least`) it may be; None: no bar.

    `unit` is shown beside the value, such as `us` or `x`.
    """

    name: str
    value: float
    unit: str = ""
    bar: float | None = None
    limit: Literal["at_most", "at_least"] = "at_most"

    @property
    def verdict(self) -> str:
        """`pass`, `FAIL`, or `-` for a figure without a bar."""
        if self.bar is None:
            return "-"
        met = self.value <= self.bar if self.limit == "at_most" else self.value >= self.bar
        return "pass" if met else "FAIL"

    def print(self) -> None:
        """Write the figure to standard output for the driver."""
        sys.stdout.write(f"{MARK}{msgspec.json.encode(self).decode()}\n")
        sys.stdout.flush()


class NotMeasured(msgspec.Struct, frozen=True):
    """Why there are no figures, and what to do to have some."""

    reason: str

    def print(self) -> None:
        """Write the reason to standard output for the driver."""
        sys.stdout.write(f"{MARK_MISSING}{self.reason}\n")
        sys.stdout.flush()


def read_reason(output: str) -> str | None:
    """Return why a benchmark measured nothing, None if it measured something."""
    for line in output.splitlines():
        if line.startswith(MARK_MISSING):
            return line.removeprefix(MARK_MISSING)
    return None


def read_measures(output: str) -> list[Measure]:
    """Return the figures in a benchmark's standard output, in order.

    Raises:
        msgspec.DecodeError: a line that begins like a figure is none.
    """
    return [
        msgspec.json.decode(line.removeprefix(MARK), type=Measure)
        for line in output.splitlines()
        if line.startswith(MARK)
    ]
