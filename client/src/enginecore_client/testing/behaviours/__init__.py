"""The behaviours that every client shows with every engine: plain functions, one sentence each.

`SHARED` and `OWN` are the tables of all of them, in the order of MODULES.
"""

import importlib
from typing import Final

import pytest

MODULES: Final = (
    "requests", "aborts", "refusals", "calls", "stats", "ranks", "starting", "loss", "ending",
)  # fmt: skip

pytest.register_assert_rewrite(*(f"{__name__}.{name}" for name in (*MODULES, "_registry")))
for _name in MODULES:
    importlib.import_module(f"{__name__}.{_name}")

from enginecore_client.testing.behaviours._registry import (  # noqa: E402 - see above
    OWN,
    SHARED,
    Behaviour,
    Ground,
    Running,
)

__all__ = ["MODULES", "OWN", "SHARED", "Behaviour", "Ground", "Running"]
