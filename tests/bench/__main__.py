"""`make bench`: every file of this directory as a section, then one table of figures and verdicts.

    python tests/bench [NAME…]        only these files

Exits 1 if a bar is missed or a section fails.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from support.measures import Measure, read_measures, read_reason  # noqa: E402

SECTION_SECONDS = 900.0


class Section(NamedTuple):
    """One benchmark file that ran: its figures, or why it has none (a failure, or something that
    is missing)."""

    name: str
    measures: list[Measure]
    failure: str = ""
    missing: str = ""

    @property
    def passed(self) -> bool:
        """Whether it ran to its end and met every bar."""
        return not self.failure and all(m.verdict != "FAIL" for m in self.measures)


def sections() -> list[str]:
    """Return the names of the benchmarks that are there."""
    return sorted(path.stem for path in HERE.glob("*.py") if path.name != "__main__.py")


def run_section(name: str, seconds: float = SECTION_SECONDS) -> Section:
    """Run one benchmark in a process of its own; its standard error goes to the terminal."""
    environment = os.environ | {"PYTHONPATH": str(HERE.parent)}
    with subprocess.Popen(
        [sys.executable, str(HERE / f"{name}.py")],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            return Section(name, [], f"not done after {seconds:g} s")
    sys.stdout.write(output)
    try:
        measures = read_measures(output)
    except msgspec.DecodeError as error:
        return Section(name, [], f"a figure cannot be read: {error}")
    if process.returncode:
        return Section(name, measures, f"exit status {process.returncode}")
    missing = read_reason(output)
    if missing is not None:
        return Section(name, measures, missing=f"not measured: {missing}")
    return Section(name, measures, "" if measures else "no figures")


def table(done: Sequence[Section]) -> list[str]:
    """Return the lines of the closing table."""
    rows = [("benchmark", "figure", "value", "bar", "verdict")]
    for section in done:
        for m in section.measures:
            sign = "≤" if m.limit == "at_most" else "≥"
            bar = "" if m.bar is None else f"{sign} {number(m.bar)}"
            value = f"{number(m.value)} {m.unit}".strip()
            rows.append((section.name, m.name, value, bar, m.verdict))
        if section.missing:
            rows.append((section.name, section.missing, "", "", "-"))
        if section.failure:
            rows.append((section.name, section.failure, "", "", "FAIL"))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def number(value: float) -> str:
    """Return a figure with as many digits as a reader can use."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def main(arguments: Sequence[str]) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="bench", description="Run the benchmarks.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(sections()))
    names = parser.parse_args(arguments).names or sections()
    unknown = set(names) - set(sections())
    if unknown:
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    done = []
    for name in names:
        started = time.monotonic()
        sys.stdout.write(f"== {name}\n")
        sys.stdout.flush()
        done.append(run_section(name))
        sys.stdout.write(f"   {time.monotonic() - started:.0f} s\n")
    sys.stdout.write("\n" + "\n".join(table(done)) + "\n")
    return int(not all(section.passed for section in done))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
