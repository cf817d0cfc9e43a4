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
    Limits,
    Phase,
    PhaseChange,
    RejectCode,
    Timers,
)
from enginecore_wire.dialects import Dialect
from enginecore_wire.frames import decode_control
from enginecore_wire.layouts import FIRST, Layout, last_of
from enginecore_wire.plain import EXT_RAW_VIEW
from enginecore_wire.tensors import INLINE_BYTES, MAX_DIMENSIONS
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


def _name(kind):
    return "PHASE" if kind is PhaseChange else kind.__name__.upper()


def _message(code, kind):
    """Return what the page says of a control message, from its heading to the next one."""
    pattern = rf"^### [^\n]*\b{_name(kind)} `{code:02x}`[^\n]*\n(.*?)(?=^#+ |\Z)"
    found = re.search(pattern, PAGE, re.MULTILINE | re.DOTALL)
    assert found, f"docs/protocol.md has no section for {_name(kind)} `{code:02x}`"
    return found[1]


def _documented_fields(text, name):
    """Return the fields in a section's table, or in the sentence that takes its place."""
    if "| field |" in text:
        table = _rows(text.partition("| code |")[0])[1:]
        return [field for row in table for field in re.findall(r"`(\w+)`", row[0])]
    _, marked, after = text.partition(f"{name}: ")
    sentence = re.split(r"\.\s", after if marked else text, maxsplit=1)[0]
    return re.findall(r"`([a-z_]+)`", sentence)


@pytest.mark.parametrize(
    ("code", "kind"), CONTROL_TYPES.items(), ids=map(_name, CONTROL_TYPES.values())
)
def test_fields_of_control_messages(code, kind):
    fields = _documented_fields(_message(code, kind), _name(kind))
    assert fields == list(kind.__struct_fields__)


@pytest.mark.parametrize(("field", "kind"), [("limits", Limits), ("timers", Timers)])
def test_maps_inside_ready(field, kind):
    rows = {row[0].strip("`"): row for row in _rows(_section("READY `81`"))}
    assert re.findall(r"`(\w+)`", rows[field][2]) == list(kind.__struct_fields__)


def test_phases():
    assert re.findall(r"`([A-Z]\w+)`", _section("PHASE `8a`")) == list(Phase)


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


def test_layouts():
    rows = _rows(_section("Layouts"))[1:]
    expected = [
        [
            layout.value,
            "{}.{} to {}.{}".format(*FIRST[layout], *last_of(layout)),
            str(Dialect(FIRST[layout]).client_index),
        ]
        for layout in Layout
    ]
    assert [row[:3] for row in rows] == expected
    assert [row[3].startswith("position 5") for row in rows] == [
        "eos_token_id" in Dialect(FIRST[layout]).request for layout in Layout
    ]


def test_limits_of_tensors():
    text = _section("Tensors")
    assert f"below {INLINE_BYTES} bytes" in text
    assert f"at most {MAX_DIMENSIONS} sizes" in text
    assert f"extension type {EXT_RAW_VIEW} " in text


def test_version():
    assert f"Version {PROTOCOL_VERSION}." in PAGE
