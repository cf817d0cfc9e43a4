"""Waiting for a condition with a deadline, instead of sleeping and hoping."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

DEADLINE = 10.0
INTERVAL = 0.01


def eventually(
    condition: Callable[[], T],
    what: str = "",
    deadline: float = DEADLINE,
    interval: float = INTERVAL,
) -> T:
    """Return the first truthy value of `condition`, called every `interval` seconds.

    An AssertionError inside `condition` counts as not yet.

    Raises:
        AssertionError: `deadline` seconds went by; the text has `what` and the last value or error.
    """
    end = time.monotonic() + deadline
    while True:
        last: object
        try:
            value = condition()
            if value:
                return value
            last = value
        except AssertionError as error:
            last = error
        if time.monotonic() >= end:
            raise AssertionError(_expired(what, condition, deadline, last))
        time.sleep(interval)


def throughout(seconds: float, look: Callable[[], object], interval: float = INTERVAL) -> None:
    """Call `look` every `interval` seconds while `seconds` go by, and once more at their end.

    Time itself is what passes here: `look` asserts that nothing happens in it.
    """
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        look()
        time.sleep(min(interval, left))
    look()


async def eventually_async(
    condition: Callable[[], T | Awaitable[T]],
    what: str = "",
    deadline: float = DEADLINE,
    interval: float = INTERVAL,
) -> T:
    """Do as `eventually`, leaving the event loop free; `condition` may be a coroutine function."""
    end = time.monotonic() + deadline
    while True:
        last: object
        try:
            value = condition()
            if inspect.isawaitable(value):
                value = await value
            if value:
                return value
            last = value
        except AssertionError as error:
            last = error
        if time.monotonic() >= end:
            raise AssertionError(_expired(what, condition, deadline, last))
        await asyncio.sleep(interval)


def _expired(what: str, condition: Callable[..., object], deadline: float, last: object) -> str:
    name = what or getattr(condition, "__qualname__", repr(condition))
    return f"not within {deadline:g} s: {name}; last: {last!r}"
