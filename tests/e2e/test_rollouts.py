"""Engines get a new spec one after another while requests come in: none fails (C10, C11)."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from support.eventually import eventually
from support.faces import Face
from support.pending import Load
from support.space import Engines, Space, Tree

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(1800),
    pytest.mark.usefixtures("installation"),
]

RANKS = (0, 1)
KINDS = ("async", "sync")
LOADS = 2
"""Requests that each client has under way."""

ROLLOUT_SECONDS = 180.0


def changed(spec: dict[str, Any], number: int) -> dict[str, Any]:
    """Return the spec with something else in the engines' environment."""
    runtime = spec["runtime"]
    env = [*runtime["env"], {"name": "ROLLOUT", "value": str(number)}]
    return spec | {"runtime": runtime | {"env": env}}


def rolled_out(engines: Engines, before: str) -> Tree | None:
    """Return the status once every engine has another revision and is ready."""
    status = engines.status()
    counts = {status.get(key) for key in ("replicas", "readyReplicas", "updatedReplicas")}
    done = counts == {len(RANKS)} and status.get("currentRevision") != before
    return status if done else None


@pytest.mark.counted(short=4, full=20)
def test_no_request_fails_while_pods_are_replaced(
    counted: float,
    space: Space,
    tiny_spec: dict[str, Any],
    make_face: Callable[..., Face],
    threads: ThreadPoolExecutor,
) -> None:
    """`counted` pods are replaced, two by each rollout."""
    engines = Engines(space, "rolling")
    engines.apply(replicas=len(RANKS), **tiny_spec)
    revision = engines.wait_ready(len(RANKS))["currentRevision"]
    epochs = [engines.epoch(rank) for rank in RANKS]
    faces = [make_face(kind, engines, retry=True) for kind in KINDS]
    loads = [Load(face, None, threads) for face in faces for _ in range(LOADS)]
    eventually(lambda: all(load.served for load in loads), "requests are served", 30)
    rollouts = round(counted / len(RANKS))
    for number in range(rollouts):
        engines.apply(replicas=len(RANKS), **changed(tiny_spec, number))
        status = eventually(
            lambda before=revision: rolled_out(engines, before),
            f"rollout {number} is done",
            ROLLOUT_SECONDS,
            0.2,
        )
        assert status is not None
        revision = status["currentRevision"]
    served = [load.stop() for load in loads]
    assert min(served) > rollouts
    assert [engines.epoch(rank) - epoch for rank, epoch in zip(RANKS, epochs, strict=True)] == [
        rollouts
    ] * len(RANKS)
