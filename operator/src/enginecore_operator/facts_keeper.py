"""Read the status pages of engines in the background and keep the latest answer of each."""

import asyncio
from collections.abc import Callable
from typing import Final

from enginecore_operator.plan.actions import Ask
from enginecore_operator.plan.facts import FACTS_PERIOD
from enginecore_operator.plan.observed import FactsReading
from enginecore_operator.status_reader import StatusReader, StatusReadError
from enginecore_operator.workqueue import Key

SHORTEST_REST: Final = 0.9 * FACTS_PERIOD


class FactsKeeper:
    """Asks pods on behalf of the passes, and calls `wake` when an answer is there."""

    def __init__(
        self, reader: StatusReader, wake: Callable[[Key], None], clock: Callable[[], float]
    ) -> None:
        self._reader = reader
        self._wake = wake
        self._clock = clock
        self._readings: dict[Key, FactsReading] = {}
        self._tasks: dict[Key, asyncio.Task[None]] = {}

    def latest(self, key: Key) -> FactsReading | None:
        """Return the latest answer for an EngineCore, of whichever pod."""
        return self._readings.get(key)

    def forget(self, key: Key) -> None:
        """Drop what is kept of an EngineCore that is gone."""
        self._readings.pop(key, None)

    def ask(self, key: Key, ask: Ask) -> None:
        """Read a status page, unless that is under way or was just done."""
        if key in self._tasks or self._is_fresh(key, ask):
            return
        task = asyncio.create_task(self._read(key, ask))
        self._tasks[key] = task
        task.add_done_callback(lambda _: self._tasks.pop(key, None))

    def close(self) -> None:
        """End what is under way."""
        for task in self._tasks.values():
            task.cancel()

    def _is_fresh(self, key: Key, ask: Ask) -> bool:
        last = self._readings.get(key)
        if last is None or (last.pod_uid, last.pod_ready) != (ask.pod_uid, ask.pod_ready):
            return False
        return self._clock() - last.at < SHORTEST_REST

    async def _read(self, key: Key, ask: Ask) -> None:
        status, error = None, ""
        try:
            status = await self._reader.read(ask.url)
        except StatusReadError as problem:
            error = str(problem)
        self._readings[key] = FactsReading(
            ask.pod_uid, ask.pod_ready, self._clock(), status=status, error=error
        )
        self._wake(key)
