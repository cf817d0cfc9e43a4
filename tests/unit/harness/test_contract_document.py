"""docs/contract-suite.md shows the tables the contract suite is made from, and all of it is run."""

import re
from pathlib import Path

import pytest

from enginecore_client.testing import tables
from enginecore_client.testing.behaviours import OWN, SHARED
from enginecore_client.testing.cells import CELLS, FAKE, TORCH
from enginecore_client.testing.engines import FAKE_ENGINE
from enginecore_client.testing.suite import places_of
from support.contract_engines import torch_under_test

ROOT = Path(__file__).resolve().parents[3]
LINES = (ROOT / "docs/contract-suite.md").read_text().splitlines()


@pytest.mark.parametrize("make", [tables.cells_table, tables.behaviours_table])
def test_the_document_has_the_table(make) -> None:
    """Where it differs, `python -m enginecore_client.testing.tables` prints what it should be."""
    wanted = make()
    start = LINES.index(wanted[0])
    shown = LINES[start : start + len(wanted)]
    assert shown == wanted
    assert LINES[start + len(wanted)] == ""


def test_every_cell_of_our_engines_is_tried() -> None:
    tried = [
        place.cell for engine in (FAKE_ENGINE, torch_under_test()) for place in places_of(engine)
    ]
    assert tried == [cell for cell in CELLS if cell.engine in (FAKE, TORCH)]
    assert len(tried) == 20


def test_every_behaviour_has_a_sentence_and_a_name_of_its_own() -> None:
    behaviours = [*SHARED, *OWN]
    assert len({each.name for each in behaviours}) == len(behaviours) > 40
    assert [each.name for each in behaviours if not each.asks.endswith(".")] == []


def test_every_name_in_the_document_is_a_behaviour() -> None:
    start = LINES.index("| vLLM's tests ask for | here |")
    rows = [line for line in LINES[start + 2 : start + 9] if line.startswith("|")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[2])}
    assert len(named) >= 17
    assert named <= {each.name for each in (*SHARED, *OWN)}
