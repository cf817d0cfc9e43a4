"""docs/upstream-faults.md: every row has an owner, and the tests it names are there."""

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "upstream-faults.md").read_text()
OWNERS = {"client", "server", "operator", "coordinator", "not ours"}

NUMBERS = {
    "21443", "21728", "39863", "26139", "26196", "10583", "15041", "15043", "27987", "23697",
    "50053", "44414", "24655", "45730", "15207", "35191", "35357", "16432", "32104", "48031",
    "50039", "27444", "35616", "32116", "32136", "35478", "17676", "13298", "57757", "49034",
    "28498", "40443", "45064", "30520", "51275", "15341", "16506", "23247", "2892", "4503",
    "22910", "47420", "48027", "36748", "40279", "49204", "48808", "40795", "43279", "16277",
    "19624", "36608", "38009", "39366", "51481", "51983", "54762", "28224", "26218", "41098",
    "45784", "43429", "13060", "12055", "17427", "17490", "17860", "35928", "2000", "2001",
    "2002", "2014", "457", "CVE-2026-114051", "CVE-2026-116174", "PYSEC-2026-4350",
    "CVE-2024-9053", "CVE-2024-11041", "CVE-2025-29783", "CVE-2025-32444", "CVE-2025-30202",
    "CVE-2025-30165", "CVE-2025-47277", "CVE-2025-62164", "CVE-2026-56340", "CVE-2026-94624",
    "CVE-2026-115912", "23582", "2008", "2679", "13801",
}  # fmt: skip
"""Every issue, pull request and advisory that was looked at."""


class Row(NamedTuple):
    """One row of the page."""

    name: str
    owners: set[str]
    held_by: str

    @property
    def numbers(self) -> list[str]:
        return re.findall(r"(?:CVE|PYSEC)-[\d-]+|\d+", self.name)

    @property
    def tests(self) -> list[str]:
        return re.findall(r"`(tests/[\w/]+\.py::\w+)`", self.held_by)


def rows() -> list[Row]:
    found = []
    for line in PAGE.splitlines():
        if line.startswith("| ") and not line.startswith("| row |"):
            name, _, owners, held_by = (cell.strip() for cell in line.strip("|").split("|"))
            found.append(Row(name, set(owners.split(", ")), held_by))
    return found


ROWS = rows()


@cache
def names_in(path: str) -> set[str]:
    file = ROOT / path
    assert file.exists(), f"{path} is not there"
    return set(re.findall(r"^\s*(?:async )?def (test_\w+)\(", file.read_text(), re.MULTILINE))


def test_every_number_has_one_row() -> None:
    numbers = [number for row in ROWS for number in row.numbers]
    assert sorted(numbers) == sorted(NUMBERS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_each_row_has_owners_and_what_holds_it(row: Row) -> None:
    assert row.owners
    assert row.owners <= OWNERS
    for test in row.tests:
        path, _, name = test.partition("::")
        assert name in names_in(path), test
    assert row.tests or "issue " in row.held_by or "not ours" in row.owners


@pytest.mark.parametrize(
    "row", [row for row in ROWS if "client" in row.owners], ids=lambda row: row.name
)
def test_a_clients_row_has_a_test_of_its_name(row: Row) -> None:
    named = [test.partition("::")[2] for test in row.tests if "::test_fault_" in test]
    known = [number.lower().replace("-", "_") for number in row.numbers]
    assert named
    if known:
        assert any(f"test_fault_{number}_" in name for number in known for name in named)


def test_every_test_of_a_fault_is_on_the_page() -> None:
    listed = {test for row in ROWS for test in row.tests}
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    there = {
        f"{path.relative_to(ROOT)}::{name}"
        for path in files
        for name in names_in(str(path.relative_to(ROOT)))
        if name.startswith("test_fault_")
    }
    assert there - listed == set()
