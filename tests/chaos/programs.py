"""How this suite's own programs are run."""

import os
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).parents[1]


def search_path() -> str:
    """Return PYTHONPATH with this suite on it."""
    return os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(TESTS)])


def environment() -> dict[str, str]:
    """Return the environment of a program."""
    return os.environ | {"PYTHONPATH": search_path()}
