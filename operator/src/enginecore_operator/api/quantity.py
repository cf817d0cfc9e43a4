"""Quantities of resources, as Kubernetes writes them."""

import re
from decimal import Decimal
from typing import Final

_PARTS: Final = re.compile(r"^(?P<number>[0-9.]+)(?P<suffix>.*)$")
_BINARY: Final = {f"{letter}i": Decimal(1024) ** (n + 1) for n, letter in enumerate("KMGTPE")}
_DECIMAL: Final = {
    letter: Decimal(10) ** exponent
    for letter, exponent in zip("numkMGTPE", (-9, -6, -3, 3, 6, 9, 12, 15, 18), strict=True)
}


def parse_quantity(text: int | str) -> Decimal:
    """Return the number that a quantity stands for. Raises ValueError for anything else."""
    match = _PARTS.match(str(text))
    if match is None:
        raise ValueError(f"{text!r} is no quantity")
    suffix = match["suffix"]
    unit = _BINARY.get(suffix) or _DECIMAL.get(suffix)
    try:
        if unit is not None:
            return Decimal(match["number"]) * unit
        return Decimal(f"{match['number']}{suffix}")
    except ArithmeticError as error:
        raise ValueError(f"{text!r} is no quantity") from error
