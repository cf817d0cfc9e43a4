"""docs/protocol.md says what the code does: worked bytes, types, codes, fields, timers."""

import re
from pathlib import Path

import msgspec
import pytest

from enginecore_wire.contract import INPUT_PORT, OUTPUT_PORT, PUBLISH_PORT, REPORT_PORT
from enginecore_wire.control import (
    CONTROL_TYPES,
    RETRYABLE,
    Hello,
    Ready,
    Reject,
    RejectCode,
    Timers,
)
from enginecore_wire.frames import decode_control
from enginecore_wire.version import PROTOCOL_VERSION

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "protocol.md").read_text()


def _section(title):
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#+ |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, f"docs/protocol.md has no section {title!r}"
    return found[1]


def _rows(text):
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows if not set(row[0]) <= {"-", " "}]


WORKED = [
    (row[0], re.findall(r"`([0-9a-f ]+)`", row[1])) for row in _rows(_section("Worked bytes"))[1:]
]


@pytest.mark.parametrize(("name", "frames"), WORKED)
def test_worked_bytes(name, frames):
    kind, body = map(bytes.fromhex, frames)
    message = decode_control([kind, body])
    assert type(message).__name__.upper() == name.split()[0]
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(message))
    assert again == msgspec.msgpack.decode(body)


def test_worked_values():
    by_name = {name: decode_control(list(map(bytes.fromhex, frames))) for name, frames in WORKED}
    assert by_name["HELLO"] == Hello(nonce=bytes(range(1, 9)), name="test", layouts=("C",))
    assert by_name["PING 7"].sequence == 7


def test_every_control_type_is_on_the_page():
    names = re.findall(r"^\| `(8[0-9a-f])` \| ([A-Z]+) \|", PAGE, re.MULTILINE)
    expected = {"PhaseChange": "PHASE"}
    assert {int(code, 16): name for code, name in names} == {
        code: expected.get(kind.__name__, kind.__name__.upper())
        for code, kind in CONTROL_TYPES.items()
    }


@pytest.mark.parametrize(
    ("title", "kind"),
    [("HELLO `80`, client → pod, on both sockets", Hello), ("READY `81`", Ready),
     ("REJECT `88`", Reject)],
)  # fmt: skip
def test_field_tables(title, kind):
    table = _section(title).partition("| code |")[0]
    cells = [re.findall(r"`(\w+)`", row[0]) for row in _rows(table)[1:]]
    assert [name for names in cells for name in names] == list(kind.__struct_fields__)


def test_reject_codes():
    table = "| code |" + _section("REJECT `88`").partition("| code |")[2]
    codes = {row[0].strip("`"): row[1] == "yes" for row in _rows(table)[1:]}
    assert codes == {code.value: code in RETRYABLE for code in RejectCode}


def test_timer_defaults():
    defaults = msgspec.to_builtins(Timers())
    table = {row[0].strip("`"): float(row[1]) for row in _rows(_section("Timers"))[1:]}
    assert {name: table[name] for name in defaults} == defaults


@pytest.mark.parametrize("port", [INPUT_PORT, OUTPUT_PORT, REPORT_PORT, PUBLISH_PORT])
def test_ports(port):
    assert f"port {port}" in _section("Sockets")


def test_version():
    assert f"Version {PROTOCOL_VERSION}." in PAGE
