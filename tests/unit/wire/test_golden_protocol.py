"""Control messages of every protocol version kept in tests/golden/protocol are understood."""

import json
from pathlib import Path

import msgspec
import pytest

from enginecore_wire.control import CONTROL_TYPES
from enginecore_wire.frames import decode_control, encode_control
from enginecore_wire.version import PROTOCOL_MINIMUM, PROTOCOL_VERSION

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "protocol"
VERSIONS = {
    version: json.loads((GOLDEN / f"v{version}.json").read_text())
    for version in range(PROTOCOL_MINIMUM, PROTOCOL_VERSION + 1)
}
ENTRIES = [
    pytest.param(entry, id=f"v{version}-{number}-{entry['message']}")
    for version, entries in VERSIONS.items()
    for number, entry in enumerate(entries)
]


def _frames(entry):
    return [bytes.fromhex(frame) for frame in entry["frames"]]


def _json(message):
    return json.loads(msgspec.json.encode(message))


def _missing(expected, found):
    """Return the paths in `expected` that `found` lacks or has otherwise."""
    if isinstance(expected, dict):
        return [
            f"{key}.{path}"
            for key, value in expected.items()
            for path in (_missing(value, found[key]) if key in found else ["(missing)"])
        ]
    return [] if expected == found else [f"{expected!r} != {found!r}"]


@pytest.mark.parametrize("entry", ENTRIES)
def test_frames_decode_to_the_fields_kept_with_them(entry):
    message = decode_control(_frames(entry))
    assert type(message).__name__ == entry["message"]
    assert _missing(entry["fields"], _json(message)) == []


@pytest.mark.parametrize("entry", ENTRIES)
def test_fields_encode_to_what_an_older_reader_finds(entry):
    kind, body = _frames(entry)
    message = msgspec.convert(entry["fields"], CONTROL_TYPES[kind[0]])
    again_kind, again = encode_control(message)
    assert again_kind == kind
    assert _missing(msgspec.msgpack.decode(body), msgspec.msgpack.decode(again)) == []


@pytest.mark.parametrize("entries", VERSIONS.values(), ids=map(str, VERSIONS))
def test_every_message_type_is_kept(entries):
    assert {entry["message"] for entry in entries} == {k.__name__ for k in CONTROL_TYPES.values()}


@pytest.mark.parametrize("entry", ENTRIES)
def test_kept_fields_are_set(entry):
    """A field at its default would decode to the same value even if it were lost."""
    kind = CONTROL_TYPES[int(entry["frames"][0], 16)]
    defaults = _json(kind())
    same = {name for name, value in entry["fields"].items() if value == defaults[name]}
    constant = {"protocol", "protocol_minimum", "layout", "layouts", "request_id", "call_id"}
    assert same <= constant
