"""Changing one item of an encoded array."""

import msgspec
import pytest

from enginecore_server.arrays import with_item
from enginecore_wire.requests import EngineCoreRequest, SamplingParams

encode, decode = msgspec.msgpack.encode, msgspec.msgpack.decode


@pytest.mark.parametrize(
    ("array", "position", "padding", "result"),
    [
        ([1, 2, 3], 1, (), [1, 9, 3]),
        ([1, 2], 2, (), [1, 2, 9]),
        ([1], 3, (None, "x"), [1, None, "x", 9]),
        ([1, 2], 3, (None, "x"), [1, 2, "x", 9]),
        (list(range(40)), 39, (), [*range(39), 9]),
        ([1, {"a": [b"raw", None]}, 3], 0, (), [9, {"a": [b"raw", None]}, 3]),
    ],
)
def test_only_the_item_changes(
    array: list[object], position: int, padding: tuple[object, ...], result: list[object]
) -> None:
    assert decode(with_item(encode(array), position, 9, padding)) == result


def test_all_other_bytes_stay() -> None:
    request = EngineCoreRequest("r", list(range(1000)), sampling_params=SamplingParams())
    body = encode(request)
    request.client_index = 5
    assert with_item(body, 11, 5) == encode(request)


@pytest.mark.parametrize("body", [b"", b"\x80", b"\xc0", b"\xc1"])
def test_no_array_is_an_error(body: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        with_item(body, 0, 1)
