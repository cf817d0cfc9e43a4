"""Whom a message concerns that does not decode."""

from typing import Any

import msgspec
import pytest

from enginecore_client._core.damage import Concerned, concerned


def body(outputs: Any, *more: Any) -> bytes:
    return msgspec.msgpack.encode([0, outputs, *more])


PICKLE = msgspec.msgpack.Ext(1, b"x")


@pytest.mark.parametrize(
    ("message", "known"),
    [
        (body([["a", "no list"], ["b", [1]]]), Concerned(["a", "b"], None)),
        (body([["a", [1], PICKLE]]), Concerned(["a"], None)),
        (body([], None, 0.0, [7, None, PICKLE]), Concerned([], 7)),
        (body([["a", [1]]], "no stats"), Concerned(["a"], None)),
        (body([], None, 0.0, None), Concerned([], None)),
        (body([[5, [1]]]), None),
        (body([[]]), None),
        (body("text"), None),
        (body(None), None),
        (body([], None, 0.0, "text"), None),
        (body([], None, 0.0, [True]), None),
        (msgspec.msgpack.encode({}), None),
        (msgspec.msgpack.encode([]), None),
        (body([["a", [1]]])[:-1], None),
        (body([["a", [1]]]) + b"x", None),
        (b"\x91" * 100_000, None),
        (b"", None),
    ],
)
def test_concerned(message: bytes, known: Concerned | None) -> None:
    assert concerned(message) == known
