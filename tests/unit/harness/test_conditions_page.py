"""docs/conditions.md lists every condition, reason and event there is, and no other."""

import re
from pathlib import Path

import pytest

from enginecore_operator.api.conditions import ConditionType, Reason

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/conditions.md").read_text()
PLANS = "\n".join(
    path.read_text()
    for path in sorted((ROOT / "operator/src/enginecore_operator").rglob("*.py"))
    if path.name != "conditions.py"
)

STATE = re.compile(r"^\| (True|False) \| `(\w+)` \|", re.MULTILINE)
EVENT = re.compile(r"^\| (?:\w+) \| (Normal|Warning) \| `(\w+)` \|", re.MULTILINE)


def section(title: str) -> str:
    return PAGE.partition(f"### {title}\n")[2].partition("\n##")[0]


def test_a_section_for_every_condition_and_no_other() -> None:
    assert set(re.findall(r"^### (\w+)$", PAGE, re.MULTILINE)) == {str(c) for c in ConditionType}


def test_every_reason_is_listed_and_no_other() -> None:
    listed = {reason for _, reason in (*STATE.findall(PAGE), *EVENT.findall(PAGE))}
    assert listed == {str(reason) for reason in Reason}


@pytest.mark.parametrize("reason", list(Reason), ids=str)
def test_every_reason_is_used(reason: Reason) -> None:
    assert re.search(rf"Reason\.{reason.name}\b", PLANS)


VERDICTS = {
    (status, Reason[name])
    for status, name in re.findall(r"Verdict\(\s*(True|False),\s*Reason\.(\w+)", PLANS)
}


@pytest.mark.parametrize("condition", list(ConditionType), ids=str)
def test_reasons_stand_beside_the_status_they_come_with(condition: ConditionType) -> None:
    rows = STATE.findall(section(condition))
    assert rows
    written = {Reason(reason) for _, reason in VERDICTS}
    wrong = [
        (status, reason)
        for status, reason in rows
        if Reason(reason) in written and (status, Reason(reason)) not in VERDICTS
    ]
    assert wrong == []


def test_every_verdict_is_listed_with_its_status() -> None:
    listed = {(status, Reason(reason)) for status, reason in STATE.findall(PAGE)}
    assert len(VERDICTS) > 15
    assert VERDICTS - listed == set()


def test_every_event_is_listed_with_its_type() -> None:
    calls = re.findall(r"\bEvent\(\s*Reason\.(\w+),[^\n]*", PLANS)
    listed = {Reason(reason) for _, reason in EVENT.findall(PAGE)}
    assert len(calls) > 5
    assert {Reason[name] for name in calls} - listed == set()
