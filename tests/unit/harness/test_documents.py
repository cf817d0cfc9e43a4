"""The documents point at what is there."""

import itertools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PATTERNS = ("*.md", "docs/**/*.md", "charts/**/*.md", "examples/**/*.md")
DOCUMENTS = [path for pattern in PATTERNS for path in ROOT.glob(pattern)]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text())
    local = [target for target in targets if "://" not in target]
    assert [target for target in local if not (document.parent / target).exists()] == []


def expanded(pattern: str) -> list[str]:
    """Write out the alternatives of a{b,c}d, as a shell does."""
    parts = re.split(r"{([^}]*)}", pattern)
    choices = [part.split(",") if index % 2 else [part] for index, part in enumerate(parts)]
    return ["".join(choice) for choice in itertools.product(*choices)]


def code_map() -> list[str]:
    text = (ROOT / "docs/architecture.md").read_text()
    table = text.partition("## Code map")[2].partition("##")[0]
    named: list[str] = []
    for line in table.splitlines():
        directory = ""
        for pattern in re.findall(r"`([^`]+)`", line.rpartition(" | ")[2]):
            # A second name in a row is beside the first one.
            full = pattern if (ROOT / pattern.split("/")[0]).is_dir() else directory + pattern
            directory = full.partition("{")[0] if "{" in full else full.rpartition("/")[0] + "/"
            named += expanded(full)
    return named


def test_the_code_map_names_files_that_exist() -> None:
    named = code_map()
    assert len(named) > 80
    assert [path for path in named if not (ROOT / path).exists()] == []
