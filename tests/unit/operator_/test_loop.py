"""What becomes of a pass in which the operator itself fails."""

import asyncio
import logging
from collections.abc import Coroutine
from logging.handlers import QueueHandler
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from enginecore_curve.keys import new_key_pair
from enginecore_operator.kube.errors import UnreachableError
from enginecore_operator.loop import Reconciler
from enginecore_operator.metrics import OperatorMetrics
from enginecore_operator.plan.actions import Event
from support.operator_objects import NAMESPACE, T0, cluster_spec, core_spec

OBJECTS = {
    "EngineCluster": ("Degraded", "True", cluster_spec()),
    "EngineCore": ("Ready", "False", core_spec()),
}


class NoRendering:
    """What passes of both kinds trip over."""


class Api:
    """An API server that has one object, and takes its status; `down`: not at first."""

    def __init__(self, raw: dict[str, Any], *, down: bool = False) -> None:
        self.raw = raw
        self.down = down
        self.taken: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.told: list[Event] = []

    async def patch(self, *request: Any) -> dict[str, Any]:
        *_, body, subresource = request
        assert subresource == "status"
        if self.down:
            self.down = False
            raise UnreachableError("down")
        self.raw = {**self.raw, **body}
        self.taken.put_nowait(body["status"])
        return self.raw

    def post(self, *event: Any) -> None:
        self.told.append(event[-1])


def document(kind: str, **status: Any) -> dict[str, Any]:
    meta = {"name": "smollm", "namespace": NAMESPACE, "uid": "u", "resourceVersion": "1"}
    return {"metadata": meta, "kind": kind, "spec": OBJECTS[kind][2], "status": status}


def reconciler(api: Api) -> Reconciler:
    clock = iter(range(10**6))
    return Reconciler(
        api,  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        api,  # type: ignore[arg-type]
        OperatorMetrics(CollectorRegistry()),
        NoRendering(),  # type: ignore[arg-type]
        new_pair=new_key_pair,
        key_lag=0.0,
        clock=lambda: float(next(clock)),
        now=lambda: T0,
    )


async def led(kind: str, api: Api, until: Coroutine[Any, Any, Any]) -> Any:
    """Let an operator lead over the one object until something has come."""
    loop = reconciler(api)
    loop.cache.put(kind, api.raw)
    loop.start()
    work = asyncio.create_task(loop.run(1))
    try:
        return await asyncio.wait_for(until, 20)
    finally:
        work.cancel()


@pytest.mark.parametrize("kind", OBJECTS)
@pytest.mark.parametrize("down", [False, True])
def test_a_fault_of_the_operator_is_told(kind: str, down: bool) -> None:
    async def story() -> None:
        api = Api(document(kind), down=down)
        status = await led(kind, api, api.taken.get())
        condition, word, _ = OBJECTS[kind]
        (found,) = status["conditions"]
        assert (found["type"], found["status"], found["reason"]) == (
            condition,
            word,
            "OperatorFault",
        )
        assert "AttributeError" in found["message"]
        assert {event.reason for event in api.told} <= {"OperatorFault"}

    asyncio.run(story())


def test_an_engine_that_serves_stays_ready() -> None:
    ready = {"type": "Ready", "status": "True", "reason": "PodReady"}

    async def story() -> None:
        api = Api(document("EngineCore", conditions=[ready]))
        records: asyncio.Queue[logging.LogRecord] = asyncio.Queue()

        async def two_passes() -> None:
            for _ in range(2):
                while "the pass failed" not in (await records.get()).getMessage():
                    pass

        log, handler = logging.getLogger("enginecore_operator.loop"), QueueHandler(records)
        log.addHandler(handler)
        try:
            await led("EngineCore", api, two_passes())
        finally:
            log.removeHandler(handler)
        assert api.taken.empty()
        assert api.told == []

    asyncio.run(story())
