"""Which trace context may go to an engine."""

import pytest

from enginecore_wire.control import RejectCode
from enginecore_wire.trace_rules import MAX_TRACE_BYTES, MAX_TRACE_HEADERS, check_trace

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    "headers",
    [
        None,
        {},
        {"traceparent": PARENT},
        {"traceparent": PARENT, "tracestate": "a=1,\tb=2", "baggage": "user=jörg"},
        {"traceparent": "no such thing"},
        {"b3": ""},
        {"x": "x" * MAX_TRACE_BYTES},
        {f"x-{number}": "1" for number in range(MAX_TRACE_HEADERS)},
    ],
)
def test_trace_context_of_any_propagator_is_taken(headers):
    assert check_trace(headers) is None


@pytest.mark.parametrize(
    ("headers", "text"),
    [
        ({"x": "a", "y": "a" * MAX_TRACE_BYTES}, "got values of 16385 characters, allowed: 16384"),
        ({f"x-{number}": "1" for number in range(33)}, "got 33 headers, allowed: at most 32"),
        ({"": "1"}, "got a name of 0 characters, allowed: 1 to 256 characters"),
        ({"x" * 257: "1"}, "got a name of 257 characters"),
        ({"x": "1\r\nauthorization: none"}, "got a control character at 'x', allowed: text of"),
        ({"x\n": "1"}, "got a control character at 'x\\n'"),
        ({"x": "\x00"}, "got a control character at 'x'"),
    ],
)
def test_what_no_propagator_writes_is_refused(headers, text):
    problem = check_trace(headers)
    assert (problem.field, problem.code) == ("trace_headers", RejectCode.INVALID_REQUEST)
    assert text in problem.message
