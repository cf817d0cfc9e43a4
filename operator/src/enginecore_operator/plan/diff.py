"""Find the first difference between what is wanted and what is there, and name its path."""

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, NamedTuple

from enginecore_operator.api.schema import QUANTITY_PATTERN

_QUANTITY: Final = re.compile(QUANTITY_PATTERN)
_FACTORS: Final = {
    "": Decimal(1),
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "k": Decimal("1e3"),
    **{letter: Decimal(10) ** (3 * power) for power, letter in enumerate("MGTPE", start=2)},
    **{f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", start=1)},
}


class Difference(NamedTuple):
    """One difference; `there` is None where the field is missing."""

    path: str
    wanted: Any
    there: Any

    def __str__(self) -> str:
        return f"{self.path}: {_short(self.there)} -> {_short(self.wanted)}"


def first_difference(wanted: Any, there: Any, path: str = "") -> Difference | None:
    """Compare `wanted` with `there`, in which more fields may be set (by defaulting).

    Lists must agree item by item. Text that reads as a Kubernetes quantity agrees with any
    other spelling of it.
    """
    if isinstance(wanted, Mapping) and isinstance(there, Mapping):
        for key, value in wanted.items():
            inner = f"{path}.{key}" if path else str(key)
            if key not in there and value not in (None, {}, []):
                return Difference(inner, value, None)
            if key in there and (found := first_difference(value, there[key], inner)):
                return found
        return None
    if _is_list(wanted) and _is_list(there):
        if len(wanted) != len(there):
            return Difference(path, wanted, there)
        for index, (left, right) in enumerate(zip(wanted, there, strict=True)):
            if found := first_difference(left, right, f"{path}[{index}]"):
                return found
        return None
    if wanted == there or _same_quantity(wanted, there):
        return None
    return Difference(path, wanted, there)


def parse_quantity(text: str) -> Decimal | None:
    """Read a Kubernetes quantity; None where the text is none."""
    match = _QUANTITY.match(text)
    if match is None:
        return None
    number, suffix = match.group(1), match.group(3) or ""
    if suffix[:1] in ("e", "E") and len(suffix) > 1 and suffix != "Ei":
        return Decimal(number) * Decimal(10) ** int(suffix[1:])
    return Decimal(number) * _FACTORS[suffix]


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _same_quantity(left: Any, right: Any) -> bool:
    if isinstance(left, bool) or isinstance(right, bool):
        return False
    if not isinstance(left, str | int) or not isinstance(right, str | int):
        return False
    one, other = parse_quantity(str(left)), parse_quantity(str(right))
    return one is not None and one == other


def _short(value: Any) -> str:
    text = "unset" if value is None else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
