"""Utility calls: which are let through, and why the others are not."""

import msgspec
import pytest

from enginecore_wire.calls import check_call
from enginecore_wire.control import RejectCode
from enginecore_wire.utility import UTILITY_METHODS

DEEP = []
for _ in range(70):
    DEEP = [DEEP]


@pytest.mark.parametrize("method", UTILITY_METHODS)
def test_listed_call_passes(method):
    assert check_call(method, ["check_health", None, [1, "a", {"b": 2.5}], {}]) is None


@pytest.mark.parametrize("method", ["shutdown", "__class__", "step_fn", "", b"sleep", None, print])
def test_any_other_method_is_refused(method):
    problem = check_call(method, [])
    assert (problem.field, problem.code) == ("method", RejectCode.UNKNOWN_METHOD)
    assert "is_sleeping" in problem.message


@pytest.mark.parametrize(
    ("first", "got"),
    [(b"\x80\x04.", "bytes"), (bytearray(b"f"), "bytearray"), (print, "builtin_function_or_method"),
     (lambda worker: worker, "function"), (None, "NoneType"), (["f"], "list"),
     ("_private", "'_private'"), ("__reduce__", "'__reduce__'"), ("a.b", "'a.b'"), ("", "''")],
)  # fmt: skip
def test_method_of_the_workers_is_a_public_name(first, got):
    problem = check_call("collective_rpc", [first, None, [], {}])
    assert (problem.field, problem.code) == ("args[0]", RejectCode.INVALID_REQUEST)
    assert f"args[0]: got {got}, allowed: the public name" in problem.message
    assert "an engine would unpickle them" in problem.message


def test_method_of_the_workers_must_be_there():
    assert check_call("collective_rpc", []).message.startswith("args[0]: got nothing")


@pytest.mark.parametrize("method", ["profile", "collective_rpc"])
@pytest.mark.parametrize(
    ("argument", "what"),
    [(DEEP, "deeper nesting"), ({"a": [msgspec.msgpack.Ext(1, b".")]}, "extension type 1"),
     ((msgspec.msgpack.Ext(2, b"."),), "extension type 2")],
)  # fmt: skip
def test_arguments_are_plain_data(method, argument, what):
    problem = check_call(method, ["check_health", argument])
    assert problem.field == "args"
    assert what in problem.message
