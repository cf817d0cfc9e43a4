"""Log lines packed and unpacked."""

import zlib
from base64 import b85encode

import pytest

from enginecore_wire.packed_log import MOST_BYTES, pack, unpack


@pytest.mark.parametrize("lines", [["a"], ["", "a", ""], ["é" * 100, "b"], ["x" * 500] * 50])
def test_lines_come_back(lines: list[str]) -> None:
    assert unpack(pack(lines)) == lines


def test_a_lone_surrogate_comes_back_as_a_question_mark() -> None:
    assert unpack(pack(["a\udc80b"])) == ["a?b"]


def test_it_takes_little_room_in_json() -> None:
    packed = pack(["the same line again"] * 50)
    assert len(packed) < 80
    assert not set('"\\') & set(packed)


@pytest.mark.parametrize(
    "text", ["", "x", "no such thing", '"', "é", b85encode(b"no zlib").decode()]
)
def test_anything_else_has_no_lines(text: str) -> None:
    assert unpack(text) == []


def test_what_grows_too_much_is_cut() -> None:
    bomb = b85encode(zlib.compress(bytes(100_000_000))).decode()
    (line,) = unpack(bomb)
    assert len(line) == MOST_BYTES
