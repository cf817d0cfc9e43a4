"""Clients that are closed and engines that are stopped."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

import pytest

from enginecore_client.errors import ClientClosedError, EngineCoreError
from enginecore_client.testing._holdings import own_holdings
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
from enginecore_client.testing.faces import params
from enginecore_wire.outputs import FinishReason

STOP_SECONDS: Final = 15.0
PATIENCE_SECONDS: Final = 30.0


@own()
def closing_ends_what_is_unfinished(ground: Ground) -> None:
    """Closing a client ends its streams and calls with ClientClosedError, however often."""
    with ground.running() as run, ThreadPoolExecutor(1) as threads:
        read, unread, dropped = (run.face.generate(list(PROMPT), run.long) for _ in range(3))
        next(read)
        run.face.add(request("queued", run.engine.long_tokens))
        waiting = None
        if run.cell.way is not Way.IN_PROCESS:
            waiting = threads.submit(_drain, run.face)
        run.face.close_client()
        for stream in (read, unread):
            with pytest.raises(ClientClosedError):
                list(stream)
        del dropped
        if waiting is not None:
            assert isinstance(waiting.exception(PATIENCE_SECONDS), ClientClosedError)
        with pytest.raises(ClientClosedError):
            run.read(3)
        with pytest.raises(ClientClosedError):
            run.face.call("is_sleeping")
        run.face.close_client()


@own()
def nothing_is_left(ground: Ground) -> None:
    """A client that was used and closed leaves no thread, no socket and no process behind."""
    with ground.deployed() as deployment:
        before = own_holdings()
        face = deployment.connect(ground.cell.client)
        stream = face.generate(list(PROMPT), params(ground.engine.long_tokens))
        next(stream)
        face.add(request("queued", ground.engine.long_tokens))
        face.close()
        eventually(lambda: own_holdings().beyond(before) == {}, "nothing is left")


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


def _drain(face: object) -> None:
    while True:
        face.get_output()  # type: ignore[attr-defined]
