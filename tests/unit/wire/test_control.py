"""Control messages: frames, defaults, and what another version may add."""

import msgspec
import pytest

from enginecore_wire.control import (
    CONTROL_TYPES,
    RETRYABLE,
    Bye,
    Draining,
    Hello,
    Limits,
    PhaseChange,
    Ping,
    Pong,
    Ready,
    Reject,
    RejectCode,
    Replaced,
    Stats,
    Timers,
    Unknown,
)
from enginecore_wire.frames import control_type, decode_control, encode_control
from enginecore_wire.outputs import ENGINE_CORE_DEAD, SchedulerStats
from enginecore_wire.version import PROTOCOL_MINIMUM, PROTOCOL_VERSION, agree

MESSAGES = [
    (0x80, Hello(nonce=b"12345678", name="a client", layouts=("C",))),
    (0x81, Ready(name="e", rank=3, epoch=2, slot=5, nonce=b"12345678", outputs_sent=9,
                 requests=["a"], engine={"max_model_len": 10}, vocab_size=7,
                 limits=Limits(1, 2, 3), timers=Timers(0.5))),
    (0x82, Ping(7)),
    (0x83, Pong(sequence=7, nonce=b"12345678", epoch=1, outputs_sent=4, live_clients=2)),
    (0x84, Stats(engine_index=1, timestamp=2.5, scheduler_stats=SchedulerStats(3))),
    (0x85, Draining("rollout", 60.0)),
    (0x86, Replaced("grace ended")),
    (0x87, Unknown(3)),
    (0x88, Reject(code=RejectCode.TOO_LARGE, message="m", field="f", request_id="r", call_id=1)),
    (0x89, Bye()),
    (0x8A, PhaseChange("Loading", "weights", 3.5)),
]  # fmt: skip


@pytest.mark.parametrize(("code", "message"), MESSAGES)
def test_message_is_its_type_byte_and_a_map(code, message):
    kind, body = encode_control(message)
    assert kind == bytes((code,))
    assert list(msgspec.msgpack.decode(body)) == list(type(message).__struct_fields__)
    assert decode_control([kind, body]) == message


def test_every_type_is_in_the_table_above():
    assert {code for code, _ in MESSAGES} == set(CONTROL_TYPES)


@pytest.mark.parametrize(("code", "kind"), CONTROL_TYPES.items())
def test_missing_keys_take_defaults(code, kind):
    assert decode_control([bytes((code,)), b"\x80"]) == kind()


@pytest.mark.parametrize(("code", "message"), MESSAGES)
def test_unknown_keys_are_ignored(code, message):
    kind, body = encode_control(message)
    tree = {"zzz": {"deep": [1]}} | msgspec.msgpack.decode(body) | {"another": None}
    assert decode_control([kind, msgspec.msgpack.encode(tree)]) == message


@pytest.mark.parametrize("code", [0x8B, 0x8F])
def test_unknown_type_is_ignored(code):
    assert decode_control([bytes((code,)), b"\xff not msgpack"]) is None


@pytest.mark.parametrize("count", [1, 3])
def test_control_message_has_two_frames(count):
    with pytest.raises(msgspec.DecodeError, match=f"expected 2 frames, got {count}"):
        decode_control([b"\x82", b"\x80", b"\x80"][:count])


@pytest.mark.parametrize(
    ("code", "body"),
    [(0x82, {"sequence": "7"}), (0x80, {"nonce": "text"}), (0x81, {"requests": [1]}),
     (0x88, {"code": None}), (0x84, {"scheduler_stats": []}), (0x82, [7])],
)  # fmt: skip
def test_value_of_the_wrong_type_is_an_error(code, body):
    with pytest.raises(msgspec.ValidationError):
        decode_control([bytes((code,)), msgspec.msgpack.encode(body)])


def test_a_deep_value_is_an_error_of_its_message_alone():
    with pytest.raises(msgspec.DecodeError, match="nested too deeply"):
        decode_control([b"\x82", b"\x81\xa1x" + b"\x91" * 100_000])


@pytest.mark.parametrize(
    ("first", "expected"),
    [(b"\x80", 0x80), (b"\x8f", 0x8F), (memoryview(b"\x83"), 0x83), (b"\x90", None),
     (b"\x00", None), (b"", None), (b"\x80\x00", None), (ENGINE_CORE_DEAD, None),
     (msgspec.msgpack.encode([0, []]), None)],
)  # fmt: skip
def test_first_frame_tells_control_from_engine_messages(first, expected):
    assert control_type(first) == expected


@pytest.mark.parametrize("code", RejectCode)
def test_retryable_codes_are_those_the_protocol_page_lists(code):
    temporary = code in {"overloaded", "draining", "not_ready", "too_many_clients"}
    assert (code in RETRYABLE) == temporary


@pytest.mark.parametrize(
    ("newest", "oldest", "chosen"),
    [
        (PROTOCOL_VERSION, PROTOCOL_MINIMUM, PROTOCOL_VERSION),
        (PROTOCOL_VERSION + 1, PROTOCOL_VERSION, PROTOCOL_VERSION),
        (PROTOCOL_VERSION + 1, PROTOCOL_VERSION + 1, None),
        (PROTOCOL_MINIMUM - 1, 0, None),
    ],
)
def test_newest_common_version_is_chosen(newest, oldest, chosen):
    assert agree(newest, oldest) == chosen
