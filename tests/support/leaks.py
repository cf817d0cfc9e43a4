"""What of its holdings a test left behind.

Processes: children, and everything that inherited this session's mark in its environment.
"""

import os
import time

from enginecore_client.testing._holdings import Holdings, own_holdings, processes_with

SESSION_MARK = f"ENGINECORE_TEST_SESSION={os.getpid()}-{time.time_ns()}"
SETTLE_SECONDS = 3.0


def mark_session() -> None:
    """Put the mark into the environment that child processes inherit."""
    name, _, value = SESSION_MARK.partition("=")
    os.environ[name] = value


def holdings(descendants: bool) -> Holdings:
    """Return what this process holds; with `descendants` also orphans that carry the mark."""
    found = own_holdings()
    if descendants:
        found.processes.update(processes_with(SESSION_MARK.encode()))
    return found


def settled_leaks(
    before: Holdings, ignored: frozenset[str], descendants: bool
) -> dict[str, list[str]]:
    """Return what stays beyond `before` once endings in progress had SETTLE_SECONDS."""
    end = time.monotonic() + SETTLE_SECONDS
    while True:
        found = holdings(descendants).beyond(before)
        leaks = {kind: names for kind, names in found.items() if kind not in ignored}
        if not leaks or time.monotonic() >= end:
            return leaks
        time.sleep(0.01)
