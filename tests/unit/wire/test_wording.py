"""Numbers in sentences."""

import pytest

from enginecore_wire.wording import counted, is_or_are


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
