"""The behaviours that every client shows with every engine: plain functions, one sentence each.

`SHARED` and `OWN` are the tables of all of them.
"""

from enginecore_client.testing.behaviours import (
    aborts,
    calls,
    ending,
    loss,
    ranks,
    refusals,
    requests,
    starting,
    stats,
)
from enginecore_client.testing.behaviours._registry import (
    OWN,
    SHARED,
    Behaviour,
    Ground,
    Running,
)

MODULES = (requests, aborts, refusals, calls, stats, ranks, starting, loss, ending)

__all__ = ["MODULES", "OWN", "SHARED", "Behaviour", "Ground", "Running"]
