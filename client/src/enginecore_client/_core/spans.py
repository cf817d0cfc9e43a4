"""Time spans as callers give them."""

from typing import Any, Final

from enginecore_client.errors import RequestRejectedError

FAR: Final = 1e9
"""Seconds: thirty years. No clock and no wait of the system is asked for more."""


def seconds_of(field: str, value: Any, allowed: str = "seconds, 0 or more") -> float:
    """Return how long a caller's time span is; what is longer than FAR is as good as FAR.

    Args:
        field: the caller's name for it.
        value: what was given.
        allowed: what may be.

    Raises:
        RequestRejectedError: it is no time span.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise RequestRejectedError(f"{field}: got {value!r}, allowed: {allowed}", field=field)
    return float(min(value, FAR))
