"""The tables of docs/contract-suite.md, made from what the suite runs.

`python -m enginecore_client.testing.tables` prints them.
"""

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from enginecore_client.testing.behaviours import OWN, SHARED, Behaviour
from enginecore_client.testing.behaviours._registry import ANY, ONE
from enginecore_client.testing.cells import CELLS, Cell, Way


def cells_table() -> list[str]:
    """Return the lines of the table of cells: a row for each client, a column for each engine."""
    engines = list(dict.fromkeys(cell.engine for cell in CELLS))
    clients = list(dict.fromkeys(cell.client for cell in CELLS))
    head = ["client", *(f"{engine} engine" for engine in engines)]
    rows = [[f"`{client}`", *(_square(client, engine) for engine in engines)] for client in clients]
    return list(_lines(head, rows))


def behaviours_table() -> list[str]:
    """Return the lines of the table of behaviours."""
    behaviours: tuple[Behaviour[Any], ...] = (*SHARED, *OWN)
    rows = [
        [f"`{each.name}`", each.asks, _where(each), ", ".join(sorted(f"`{n}`" for n in each.needs))]
        for each in behaviours
    ]
    return list(_lines(["behaviour", "what is asked", "where", "only if the engine"], rows))


def _square(client: str, engine: str) -> str:
    cells = [cell for cell in CELLS if (cell.client, cell.engine) == (client, engine)]
    return ", ".join(_named(cell) for cell in cells)


def _named(cell: Cell) -> str:
    return cell.way.value if cell.ranks == 1 else f"{cell.way.value} ({cell.ranks} engines)"


def _where(behaviour: Behaviour[Any]) -> str:
    ways = "everywhere"
    if behaviour.ways == frozenset(Way) - {Way.IN_PROCESS}:
        ways = "all but in process"
    elif behaviour.ways != frozenset(Way):
        ways = ", ".join(way.value for way in Way if way in behaviour.ways)
    if behaviour.ranks == ANY:
        return ways
    return f"{ways}; {'one engine' if behaviour.ranks == ONE else 'several engines'}"


def _lines(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |".replace("|  |", "| |")


if __name__ == "__main__":
    sys.stdout.write("\n".join([*cells_table(), "", *behaviours_table(), ""]))
