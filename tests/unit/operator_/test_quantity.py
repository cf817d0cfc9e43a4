"""Quantities as Kubernetes writes them."""

from decimal import Decimal

import pytest

from enginecore_operator.api.quantity import parse_quantity


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (2, "2"),
        ("2", "2"),
        ("500m", "0.5"),
        ("1.5Gi", "1610612736"),
        (".5k", "500"),
        ("1.", "1"),
        ("3e2", "300"),
        ("3E-2", "0.03"),
        ("2E", "2000000000000000000"),
        ("7n", "0.000000007"),
        ("1u", "0.000001"),
        ("1Ei", str(2**60)),
    ],
)
def test_known_forms(text: int | str, number: str) -> None:
    assert parse_quantity(text) == Decimal(number)


@pytest.mark.parametrize("text", ["", "lots", "1.2.3", "-1", "1Z", "1 k"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no quantity"):
        parse_quantity(text)
