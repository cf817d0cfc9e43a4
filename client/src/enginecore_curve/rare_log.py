"""Warnings about what peers do, who could fill a log with them."""

import logging
import time
from collections.abc import Callable
from typing import Final

_SILENT_SECONDS: Final = 60.0


class RareLog:
    """Writes one warning a minute and says how many it has left out.

    Args:
        logger: gets the warnings.
        clock: in seconds.
    """

    def __init__(self, logger: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._clock = clock
        self._next = 0.0
        self._left_out = 0

    def warning(self, text: str, *values: object) -> None:
        """Write a warning, or count it."""
        now = self._clock()
        if now < self._next:
            self._left_out += 1
            return
        since = f" ({self._left_out} more like it before)" if self._left_out else ""
        self._logger.warning("%s%s", text % values, since)
        self._next = now + _SILENT_SECONDS
        self._left_out = 0
