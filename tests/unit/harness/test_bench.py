"""The bench driver: figures, verdicts, and sections that fail."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.measures import Measure

TESTS = Path(__file__).parents[2]
FIGURES = """
from support.measures import Measure
print("warming up")
Measure("round trip", 1.8, "x", bar=2.2).print()
Measure("frames per CPU-second", 151234.5, bar=150000, limit="at_least").print()
Measure("seen", 3.0, "s").print()
"""
MISSED = "from support.measures import Measure\nMeasure('import', 0.2, 's', bar=0.15).print()\n"
CRASHED = "raise SystemExit(3)\n"
SILENT = "print('nothing measured')\n"
BROKEN = "print('measure {}')\n"
MISSING = "from support.measures import NotMeasured\nNotMeasured('needs a peer').print()\n"


@pytest.mark.parametrize(
    ("measure", "verdict"),
    [
        (Measure("a", 2.2, bar=2.2), "pass"),
        (Measure("a", 2.3, bar=2.2), "FAIL"),
        (Measure("a", 150_000, bar=150_000, limit="at_least"), "pass"),
        (Measure("a", 149_999, bar=150_000, limit="at_least"), "FAIL"),
        (Measure("a", 1.0), "-"),
    ],
)
def test_verdict(measure: Measure, verdict: str) -> None:
    assert measure.verdict == verdict


def bench(tmp_path: Path, *arguments: str, **files: str) -> tuple[int, str]:
    shutil.copytree(TESTS / "support", tmp_path / "support")
    (tmp_path / "bench").mkdir()
    shutil.copy(TESTS / "bench" / "__main__.py", tmp_path / "bench")
    for name, source in files.items():
        (tmp_path / "bench" / f"{name}.py").write_text(source)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "bench"), *arguments],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_table_has_every_figure_with_its_bar(tmp_path: Path) -> None:
    code, output = bench(tmp_path, relay=FIGURES)
    assert code == 0, output
    assert output.splitlines()[-4:] == [
        "benchmark  figure                 value    bar        verdict",
        "relay      round trip             1.8 x    ≤ 2.2      pass",
        "relay      frames per CPU-second  151,234  ≥ 150,000  pass",
        "relay      seen                   3 s                 -",
    ]


@pytest.mark.parametrize(
    ("source", "line"),
    [
        (MISSED, "≤ 0.15"),
        (CRASHED, "exit status 3"),
        (SILENT, "no figures"),
        (BROKEN, "a figure cannot be read"),
    ],
    ids=["missed", "crashed", "silent", "broken"],
)
def test_one_section_that_fails_leaves_the_others(source: str, line: str, tmp_path: Path) -> None:
    code, output = bench(tmp_path, first=source, second=FIGURES)
    assert code == 1, output
    assert line in output
    assert "FAIL" in output
    assert "151,234" in output


def test_names_choose_sections(tmp_path: Path) -> None:
    code, output = bench(tmp_path, "good", good=FIGURES, bad=CRASHED)
    assert code == 0, output


def test_what_cannot_be_measured_is_said_and_fails_nothing(tmp_path: Path) -> None:
    code, output = bench(tmp_path, first=MISSING, second=FIGURES)
    assert code == 0, output
    assert "first      not measured: needs a peer" in output
