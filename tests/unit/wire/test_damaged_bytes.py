"""Whatever bytes come, a decoder returns a message or raises an error of msgspec."""

from contextlib import suppress

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enginecore_wire.codec import MsgpackDecoder, MsgpackEncoder
from enginecore_wire.control import CONTROL_TYPES, Hello, Ready, Reject
from enginecore_wire.frames import decode_control, encode_control
from enginecore_wire.outputs import (
    EngineCoreOutput,
    EngineCoreOutputs,
    FinishReason,
    Logprobs,
    SchedulerStats,
    UtilityOutput,
    UtilityResult,
)
from enginecore_wire.requests import EngineCoreRequest, LoRARequest, SamplingParams, UtilityCall
from enginecore_wire.tensors import Tensor
from enginecore_wire.validation import RequestLimits, check_request, checked_decoder, decode_problem

SETTINGS = settings(deadline=None, derandomize=True, database=None, max_examples=300)
LOGPROBS = Logprobs(
    Tensor("<i4", (1, 2), bytes(8)), Tensor("<f4", (1, 2), bytes(8)), Tensor("<i4", (1,), bytes(4))
)
MESSAGES = [
    EngineCoreRequest(
        "req-0",
        [1, 2, 3],
        sampling_params=SamplingParams(max_tokens=4, logit_bias={3: 1.0}, stop=["a"]),
        lora_request=LoRARequest("a", 1, "/a"),
        prompt_embeds=Tensor("float16", (40, 4), bytes(320)),
        trace_headers={"a": "b"},
    ),
    EngineCoreOutputs(
        0,
        [EngineCoreOutput("req-0", [1], LOGPROBS, finish_reason=FinishReason.STOP)],
        SchedulerStats(num_running_reqs=1),
        1.5,
        UtilityOutput(7, None, UtilityResult(None, {"a": [1]})),
        ["req-0"],
    ),
    UtilityCall(0, 2**64 - 1, "profile", [True, "x"]),
]
ENCODED = [(type(message), MsgpackEncoder().encode(message)) for message in MESSAGES]
CONTROL = [
    encode_control(message)
    for message in (
        Hello(nonce=bytes(8), name="n"),
        Ready(requests=["a"], engine={"max_model_len": 3}),
        Reject(code="overloaded", request_id="r"),
    )
]
LIMITS = RequestLimits(vocab_size=100, max_model_len=50, hidden_size=4, supports_lora=True)


def _decode_or_refuse(kind, body, aux=()):
    with suppress(msgspec.DecodeError):
        MsgpackDecoder(kind).decode(body, aux)


@pytest.mark.parametrize(
    ("kind", "frames"), ENCODED, ids=lambda value: getattr(value, "__name__", "")
)
def test_cut_at_every_byte(kind, frames):
    body, *aux = frames
    assert MsgpackDecoder(kind).decode(body, aux) in MESSAGES
    for length in range(len(body)):
        with pytest.raises(msgspec.DecodeError):
            MsgpackDecoder(kind).decode(body[:length], aux)


@pytest.mark.parametrize(
    ("kind", "frames"), ENCODED, ids=lambda value: getattr(value, "__name__", "")
)
def test_trailing_bytes_are_refused(kind, frames):
    body, *aux = frames
    with pytest.raises(msgspec.DecodeError):
        MsgpackDecoder(kind).decode(bytes(body) + b"\x00", aux)


@pytest.mark.parametrize("kind", [kind for kind, _ in ENCODED] + [SamplingParams, Tensor])
@SETTINGS
@given(body=st.binary(max_size=200))
def test_arbitrary_bytes(kind, body):
    _decode_or_refuse(kind, body, [b"aux"])


@SETTINGS
@given(
    which=st.sampled_from(ENCODED),
    changes=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), min_size=1, max_size=4),
    frames_left=st.integers(0, 1),
)
def test_changed_bytes(which, changes, frames_left):
    kind, (body, *aux) = which
    damaged = bytearray(body)
    for place, value in changes:
        damaged[place % len(damaged)] = value
    _decode_or_refuse(kind, bytes(damaged), aux[:frames_left])


@SETTINGS
@given(changes=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=4))
def test_request_checks_answer_for_whatever_decodes(changes):
    body, *aux = ENCODED[0][1]
    damaged = bytearray(body)
    for place, value in changes:
        damaged[place % len(damaged)] = value
    try:
        request = checked_decoder(LIMITS.vocab_size).decode(bytes(damaged), aux)
    except msgspec.DecodeError as error:
        problem = decode_problem(error)
    else:
        problem = check_request(request, LIMITS, tokens_checked=True)
    assert problem is None or problem.message.startswith(problem.field)


@SETTINGS
@given(
    which=st.sampled_from(CONTROL),
    type_byte=st.none() | st.sampled_from(sorted(CONTROL_TYPES)),
    changes=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=4),
)
def test_changed_control_messages(which, type_byte, changes):
    kind, body = which
    damaged = bytearray(body)
    for place, value in changes:
        damaged[place % len(damaged)] = value
    frames = [kind if type_byte is None else bytes((type_byte,)), bytes(damaged)]
    with suppress(msgspec.DecodeError):
        decode_control(frames)
