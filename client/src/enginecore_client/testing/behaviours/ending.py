"""Clients that are closed and engines that are stopped."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

import pytest

from enginecore_client.errors import ClientClosedError, EngineCoreError
from enginecore_client.testing._holdings import nothing_beyond, own_holdings
from enginecore_client.testing._waiting import eventually
from enginecore_client.testing.behaviours._registry import (
    OUTSIDE,
    PROMPT,
    Ground,
    own,
    request,
    tokens,
)
from enginecore_client.testing.cells import Way
from enginecore_client.testing.faces import Face, params
from enginecore_wire.outputs import FinishReason

STOP_SECONDS: Final = 15.0
PATIENCE_SECONDS: Final = 30.0


@own()
def closing_ends_everything(ground: Ground) -> None:
    """Closing a client, however often, ends its streams and calls with ClientClosedError; no
    thread, no socket and no process of it is left."""
    with ground.lasting() as deployment:
        before = own_holdings()
        face = deployment.connect(ground.cell.client)
        long = params(ground.engine.long_tokens)
        with ThreadPoolExecutor(1) as threads:
            read, unread, dropped = (face.generate(list(PROMPT), long) for _ in range(3))
            next(read)
            face.add(request("queued", ground.engine.long_tokens))
            waiting = threads.submit(_drain, face, ground.cell.way)
            face.close_client()
            for stream in (read, unread):
                with pytest.raises(ClientClosedError):
                    list(stream)
                stream.close()  # type: ignore[attr-defined]
            del dropped
            assert isinstance(waiting.exception(PATIENCE_SECONDS), ClientClosedError)
        for ask in (
            lambda: list(face.generate(list(PROMPT), params(3))),
            lambda: face.call("is_sleeping"),
            lambda: face.add(request("late", 3)),
        ):
            with pytest.raises(ClientClosedError):
                ask()
        face.close_client()
        face.close()
        eventually(lambda: nothing_beyond(before), "nothing is left")


@own(ways=OUTSIDE)
def stopped_engine_ends_in_order(ground: Ground) -> None:
    """SIGTERM ends an engine in order: what runs ends, whole or with ABORT, never in silence,
    and what is asked after it is refused with an error."""
    with ground.running() as run:
        stream = run.face.generate(list(PROMPT), params(40))
        outputs = [next(stream)]
        began = time.monotonic()
        for rank in range(run.cell.ranks):
            run.deployment.terminate(rank)
        outputs += stream
        assert outputs[-1].finish_reason in (FinishReason.LENGTH, FinishReason.ABORT)
        if outputs[-1].finish_reason is FinishReason.LENGTH:
            assert len(tokens(outputs)) == 40

        def refused() -> bool:
            with suppress(EngineCoreError):
                list(run.face.generate(list(PROMPT), params(2), deadline=5.0))
                return False
            return True

        eventually(refused, "new requests are refused", deadline=STOP_SECONDS)
        assert time.monotonic() - began < 2 * STOP_SECONDS


def _drain(face: Face, way: Way) -> None:
    """Read until an error ends it; in this process nobody else would compute meanwhile."""
    while way is not Way.IN_PROCESS:
        face.get_output()
    raise ClientClosedError("not read")
