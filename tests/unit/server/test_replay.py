"""Which messages can be sent again."""

import pytest

from enginecore_server.replay import KEPT_BYTES, SentMessages, is_engine_message
from enginecore_wire.control import Pong
from enginecore_wire.frames import encode_control
from enginecore_wire.outputs import ENGINE_CORE_DEAD


def sent(*bodies: bytes) -> SentMessages:
    messages = SentMessages()
    for body in bodies:
        messages.add(body)
    return messages


@pytest.mark.parametrize(
    ("newest", "count", "again"),
    [
        (0, 2, [b"c", b"d"]),
        (1, 2, [b"b", b"c"]),
        (0, 4, [b"a", b"b", b"c", b"d"]),
        (3, 1, [b"a"]),
        (0, 5, []),
        (3, 2, []),
        (9, 1, []),
        (0, 0, []),
    ],
)
def test_all_that_is_missing_or_nothing(newest: int, count: int, again: list[bytes]) -> None:
    assert sent(b"a", b"b", b"c", b"d").before(newest, count) == again


def test_what_cannot_be_kept_ends_the_row() -> None:
    messages = sent(b"a", b"b")
    messages.add_frames([b"body", b"aux"])
    messages.add_frames([b"c"])
    assert messages.before(0, 1) == [b"c"]
    assert messages.before(0, 2) == []


def test_only_so_many_bytes_are_kept() -> None:
    half = bytes(KEPT_BYTES // 2)
    messages = sent(b"old", half, half)
    assert messages.before(0, 2) == [half, half]
    assert messages.before(0, 3) == []
    messages.add(bytes(KEPT_BYTES + 1))
    assert messages.before(0, 1) == []


def test_which_messages_count() -> None:
    assert is_engine_message([b"\x92\x00\x90"])
    assert is_engine_message([b"\x92\x00\x90", b"aux"])
    assert not is_engine_message(encode_control(Pong()))
    assert not is_engine_message([ENGINE_CORE_DEAD])
