"""What trace context a request may carry.

`trace_headers` are the headers of W3C Trace Context and Baggage (`traceparent`, `tracestate`,
`baggage`) or of another propagator. An engine hands them to its tracer and repeats them with every
output, so they are held to the sizes those standards know. Whether a `traceparent` is one is for
the tracer: by the standard, it starts a new trace where it is not.
"""

import re
from collections.abc import Mapping
from typing import Final

from enginecore_wire.problems import FieldProblem, outside

MAX_TRACE_HEADERS: Final = 32
MAX_TRACE_NAME: Final = 256
MAX_TRACE_BYTES: Final = 16384
"""Characters of all values together: the standards allow 8,192 for baggage and 512 for
tracestate."""

_CONTROL: Final = re.compile("[\\x00-\\x08\\x0a-\\x1f\\x7f]")


def check_trace(headers: Mapping[str, str] | None) -> FieldProblem | None:
    """Return the first thing wrong with trace headers, or None."""
    if not headers:
        return None
    field = "trace_headers"
    if len(headers) > MAX_TRACE_HEADERS:
        return outside(field, f"{len(headers)} headers", f"at most {MAX_TRACE_HEADERS}")
    for name, value in headers.items():
        if not 1 <= len(name) <= MAX_TRACE_NAME:
            return outside(
                field, f"a name of {len(name)} characters", f"1 to {MAX_TRACE_NAME} characters"
            )
        if _CONTROL.search(name) or _CONTROL.search(value):
            return outside(field, f"a control character at {name!r}", "text of one line")
    size = sum(map(len, headers.values()))
    if size > MAX_TRACE_BYTES:
        return outside(
            field, f"values of {size} characters", f"{MAX_TRACE_BYTES} characters together"
        )
    return None
