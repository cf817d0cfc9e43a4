"""Pickles are neither read nor written, wherever a message has room for any value."""

import msgspec
import numpy as np
import pytest

from enginecore_wire.codec import MsgpackDecoder, MsgpackEncoder
from enginecore_wire.outputs import EngineCoreOutputs
from enginecore_wire.plain import ExtensionError, UnsendableError
from enginecore_wire.requests import (
    EngineCoreRequest,
    KvHintAction,
    KvHints,
    PoolingParams,
    SamplingParams,
    StructuredOutputs,
    UtilityCall,
)

Ext = msgspec.msgpack.Ext
PICKLE = b"\x80\x04N."
REASONS = [(1, "it carries a pickle, and reading one runs its sender's code"),
           (2, "a pickled function"), (4, "only type 3, the bytes of an array, is known"),
           (-3, "only type 3")]  # fmt: skip


def _add(**fields):
    return EngineCoreRequest("r", [1], **fields)


PLACES = [
    pytest.param(lambda value: _add(sampling_params=SamplingParams(extra_args={"a": [value]})),
                 id="extra_args"),
    pytest.param(lambda value: _add(sampling_params=SamplingParams(
        structured_outputs=StructuredOutputs(json={"a": value}))), id="schema"),
    pytest.param(lambda value: _add(pooling_params=PoolingParams(extra_kwargs={"a": (value,)})),
                 id="pooling"),
    pytest.param(lambda value: _add(reasoning_parser_kwargs={"a": {"b": value}}), id="reasoning"),
    pytest.param(lambda value: _add(kv_hints=KvHints("1", "m", [
        KvHintAction("a", "pin", "1", {"x": value})])), id="hints"),
    pytest.param(lambda value: UtilityCall(0, 1, "collective_rpc", ["f", None, [value]]),
                 id="call"),
    pytest.param(lambda value: UtilityCall(0, 1, "collective_rpc", [value]), id="method"),
    pytest.param(lambda value: [value], id="array"),
    pytest.param(lambda value: {"a": value}, id="map"),
]  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("code", "reason"), REASONS)
def test_ready_made_extension_is_not_written(place, code, reason):
    with pytest.raises(UnsendableError, match=f"extension type {code} cannot be sent: .*{reason}"):
        MsgpackEncoder().encode(place(Ext(code, PICKLE)))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("value", [lambda: None, object(), int, 1j, np.array([{}]), slice(1)])
def test_what_is_no_plain_data_is_not_written(place, value):
    with pytest.raises((UnsendableError, ValueError), match=r"cannot be sent|may not travel"):
        MsgpackEncoder().encode(place(value))


@pytest.mark.parametrize("place", PLACES)
def test_plain_data_is_written(place):
    message = place([1, None, "a", 2.5, b"raw", np.ones(2), Ext(3, b"array")])
    MsgpackEncoder().encode(message)


def test_data_that_holds_itself_is_refused_in_time():
    args = ["f"]
    args.append(args)
    with pytest.raises(RecursionError):
        MsgpackEncoder().encode(UtilityCall(0, 1, "collective_rpc", args))


def _bytes(tree):
    return msgspec.msgpack.encode(tree)


@pytest.mark.parametrize(("code", "reason"), REASONS)
@pytest.mark.parametrize(
    ("kind", "tree"),
    [
        (EngineCoreRequest, lambda ext: ["r", [1], None, {"extra_args": {"a": ext}}]),
        (EngineCoreOutputs, lambda ext: [0, [], None, 1.0, [7, None, [None, ext]]]),
        (EngineCoreOutputs, lambda ext: [0, [["r", [1], *[None] * 6, {"a": [ext]}]]]),
        (UtilityCall, lambda ext: [0, 1, "collective_rpc", [ext]]),
        (dict, lambda ext: {"a": ext}),
    ],
)
def test_extension_is_not_read(kind, tree, code, reason):
    with pytest.raises(ExtensionError, match=reason) as raised:
        MsgpackDecoder(kind).decode(_bytes(tree(Ext(code, PICKLE))))
    assert raised.value.code == code


@pytest.mark.parametrize("code", [1, 2, 3])
@pytest.mark.parametrize(
    ("kind", "tree"),
    [(EngineCoreRequest, lambda ext: [ext, [1]]), (EngineCoreRequest, lambda ext: ["r", ext]),
     (EngineCoreOutputs, lambda ext: [0, [["r", [ext]]]]),
     (UtilityCall, lambda ext: [0, 1, ext, []])],
)  # fmt: skip
def test_extension_in_a_field_of_another_type_is_refused(kind, tree, code):
    with pytest.raises(msgspec.ValidationError, match="got `ext`"):
        MsgpackDecoder(kind).decode(_bytes(tree(Ext(code, PICKLE))))


@pytest.mark.parametrize("code", [1, 2])
def test_extension_past_the_known_positions_is_skipped_unread(code):
    body = _bytes([0, [], None, 1.5, None, None, None, None, None, Ext(code, PICKLE)])
    assert MsgpackDecoder(EngineCoreOutputs).decode(body) == EngineCoreOutputs(timestamp=1.5)
