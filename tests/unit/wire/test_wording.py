"""Numbers in sentences."""

import pytest

from enginecore_wire.wording import counted, is_or_are, shortened


@pytest.mark.parametrize(
    ("number", "words"),
    [(0, "0 engines are"), (1, "1 engine is"), (2, "2 engines are"), (-1, "-1 engines are")],
)
def test_one_is_singular(number: int, words: str) -> None:
    assert f"{counted(number, 'engine')} {is_or_are(number)}" == words


def test_irregular_plurals() -> None:
    assert (counted(1, "entry", "entries"), counted(3, "entry", "entries")) == (
        "1 entry",
        "3 entries",
    )


@pytest.mark.parametrize(
    ("text", "left"),
    [("", ""), ("a" * 10, "a" * 10), ("abcdefghijk", "abcd … ijk"), ("é" * 99, "éééé … ééé")],
)
def test_a_long_text_loses_its_middle(text: str, left: str) -> None:
    assert shortened(text, 10, 4) == left
    assert len(left) <= 10
