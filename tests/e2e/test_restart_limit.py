"""An engine that fails at every start: back-off, an end to it, and a way back (C16)."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from support.eventually import eventually
from support.space import Engines, Space

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("installation"),
]

LIMIT = 3
BACK_OFF = {"initialSeconds": 1, "maxSeconds": 60, "limit": LIMIT}
EARLIEST = 0.75
"""The pause runs from the failure itself, and its Event is written a little later."""

LAST_WORDS = "--kv-cache-bytes"


def condition(tree: dict[str, Any], kind: str) -> tuple[str, str, str]:
    """Return status, reason and message of a condition."""
    found = next(c for c in tree["status"]["conditions"] if c["type"] == kind)
    return found["status"], found["reason"], found["message"]


def test_engine_that_always_fails_is_given_up_until_its_spec_changes(
    space: Space, tiny_spec: dict[str, Any]
) -> None:
    engines = Engines(space, "broken")
    # Too little for a single sequence: the engine says so and exits 1.
    runtime = tiny_spec["runtime"] | {"args": ["--kv-cache-bytes", "1", "--threads", "1"]}
    spec = tiny_spec | {"restart": BACK_OFF}
    engines.apply(replicas=1, **(spec | {"runtime": runtime}))

    def given_up() -> dict[str, Any] | None:
        if not engines.cores():
            return None
        core = engines.core(0)
        return core if core.get("status", {}).get("phase") == "Failed" else None

    core = eventually(given_up, "the engine is given up", 120, 0.2)
    assert core is not None
    status, reason, message = condition(core, "Ready")
    assert (status, reason) == ("False", "RestartLimitReached")
    assert LAST_WORDS in message
    assert core["status"]["epoch"] == LIMIT
    eventually(
        lambda: (
            condition(space.get("engineclusters", "broken") or {}, "Degraded")[:2]
            == ("True", "EngineFailed")
        ),
        "the cluster is degraded",
    )

    events = space.events("broken-0")
    failed = [event for event in events if event["reason"] == "PodFailed"]
    (last,) = [event for event in events if event["reason"] == "RestartLimitReached"]
    assert len(failed) == LIMIT
    assert all(event["type"] == "Warning" for event in (*failed, last))
    assert "exited with code 1" in last["note"]
    assert LAST_WORDS in last["note"]
    replaced = [event for event in events if event["reason"] == "Replaced"]
    assert len(replaced) == LIMIT - 1
    for count, (failure, start) in enumerate(zip(failed, replaced, strict=False)):
        pause = _time(start) - _time(failure)
        assert pause >= timedelta(seconds=2**count) * EARLIEST, f"after failure {count + 1}"

    engines.apply(replicas=1, **spec)
    engines.wait_epoch(0, LIMIT + 1)
    engines.wait_ready(1)
    cluster = space.get("engineclusters", "broken")
    assert cluster is not None
    assert condition(cluster, "Degraded")[0] == "False"


def _time(event: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(event["eventTime"])
