"""vLLM's messages: the worked bytes of its 0.32 encoder and ours are the same trees."""

import msgspec
import pytest

from enginecore_wire.codec import MsgpackDecoder, MsgpackEncoder
from enginecore_wire.coordination import EngineLoad, FirstRequest, LoadReport
from enginecore_wire.handshake import EngineStatus, engine_identity, engine_rank
from enginecore_wire.outputs import (
    EngineCoreOutput,
    EngineCoreOutputs,
    FinishReason,
    Logprobs,
    TokenLogprob,
    UtilityOutput,
    UtilityResult,
)
from enginecore_wire.requests import (
    EngineCoreRequest,
    LoRARequest,
    OutputKind,
    PoolingParams,
    SamplingParams,
    UtilityCall,
)
from enginecore_wire.tensors import Tensor

ADD = EngineCoreRequest(
    "req-0",
    [1, 2, 3],
    sampling_params=SamplingParams(
        temperature=0.0,
        stop=[],
        stop_token_ids=[],
        ignore_eos=True,
        max_tokens=4,
        output_kind=OutputKind.DELTA,
        bad_words=[],
        skip_reading_prefix_cache=False,
    ),
    arrival_time=1.7e9,
)

WORKED = [
    pytest.param(
        "dc0016 a57265712d30 93010203 c0 de0008 ab74656d7065726174757265cb0000000000000000"
        "a473746f7090 ae73746f705f746f6b656e5f69647390 aa69676e6f72655f656f73c3"
        "aa6d61785f746f6b656e7304 ab6f75747075745f6b696e6401 a96261645f776f72647390"
        "b9736b69705f72656164696e675f7072656669785f6361636865c2 c0 cb41d954fc40000000"
        "c0 c0 c0 c0 c0 00 00 00 c0 c2 c0 c0 c0 c2 c0 c0",
        ADD,
        id="add",
    ),
    pytest.param(
        "99 00 91 dc0012 a57265712d30 912a c0 c0 c0 01 c0 c0 c0 c0 c0 c0 c0 00 c0 c0 c0 c0"
        "c0 cb4029000000000000 c0 91a57265712d30 c0 c0 c0",
        EngineCoreOutputs(
            outputs=[EngineCoreOutput("req-0", [42], finish_reason=FinishReason.LENGTH)],
            timestamp=12.5,
            finished_requests=["req-0"],
        ),
        id="last-token",
    ),
    pytest.param(
        "94 00 cf1122334455667788 ab69735f736c656570696e67 90",
        UtilityCall(0, 0x1122334455667788, "is_sleeping", []),
        id="utility-call",
    ),
    pytest.param(
        "99 00 90 c0 cb4029000000000000 93 07 c0 92c0c2 c0 c0 c0 c0",
        EngineCoreOutputs(
            timestamp=12.5, utility_output=UtilityOutput(7, None, UtilityResult(None, False))
        ),
        id="utility-reply",
    ),
    pytest.param("91a57265712d30", ["req-0"], id="abort"),
    pytest.param(
        "83a6737461747573a548454c4c4fa56c6f63616cc3a8686561646c657373c2",
        {"status": "HELLO", "local": True, "headless": False},
        id="engine-hello",
    ),
    pytest.param("92c402010003", FirstRequest(engine_identity(1), 3), id="first-request"),
    pytest.param(
        "9392930001cb3fd0000000000000930203cb3fe000000000000003c3",
        LoadReport([EngineLoad(0, 1, 0.25), EngineLoad(2, 3, 0.5)], 3, True),
        id="load-report",
    ),
    pytest.param("93c004c2", LoadReport(None, 4, False), id="wave-only"),
]


@pytest.mark.parametrize(("worked", "message"), WORKED)
def test_worked_bytes_decode_to_the_message(worked, message):
    decoder = MsgpackDecoder(type(message))
    assert decoder.decode(bytes.fromhex(worked)) == message


@pytest.mark.parametrize(("worked", "message"), WORKED)
def test_message_encodes_to_the_tree_of_the_worked_bytes(worked, message):
    (body,) = MsgpackEncoder().encode(message)
    assert msgspec.msgpack.decode(body) == msgspec.msgpack.decode(bytes.fromhex(worked))


@pytest.mark.parametrize(
    ("kind", "positions"),
    [(EngineCoreRequest, 22), (EngineCoreOutput, 18), (EngineCoreOutputs, 9), (UtilityOutput, 3),
     (UtilityCall, 4), (PoolingParams, 10), (LoRARequest, 6)],
)  # fmt: skip
def test_array_has_the_positions_of_layout_c(kind, positions):
    assert len(kind.__struct_fields__) == positions


def _tree(message):
    return msgspec.msgpack.decode(MsgpackEncoder().encode(message)[0])


@pytest.mark.parametrize(
    ("full", "kept"),
    [(ADD, 9), (EngineCoreOutput("r", [1]), 2), (EngineCoreOutputs(timestamp=2.0), 4),
     (UtilityOutput(7), 1), (LoRARequest("a", 1, "/a"), 3)],
)  # fmt: skip
def test_array_that_lacks_trailing_positions_takes_defaults(full, kept):
    body = msgspec.msgpack.encode(_tree(full)[:kept])
    assert MsgpackDecoder(type(full)).decode(body) == full


@pytest.mark.parametrize("full", [ADD, EngineCoreOutput("r", [1]), EngineCoreOutputs()])
def test_surplus_positions_are_ignored(full):
    body = msgspec.msgpack.encode([*_tree(full), {"new": 1}, "more"])
    assert MsgpackDecoder(type(full)).decode(body) == full


def test_sampling_params_send_what_differs_from_the_defaults_alone():
    assert _tree(SamplingParams(top_k=5, eos_token_id=2)) == {"top_k": 5, "_eos_token_id": 2}


def test_sampling_params_ignore_keys_of_other_versions():
    body = msgspec.msgpack.encode({"top_k": 5, "from_the_future": [1]})
    assert MsgpackDecoder(SamplingParams).decode(body) == SamplingParams(top_k=5)


@pytest.mark.parametrize(
    ("status", "tree"),
    [(EngineStatus("HELLO", False, True),
      {"status": "HELLO", "local": False, "headless": True, "parallel_config_hash": None})],
)  # fmt: skip
def test_engine_status_is_a_map(status, tree):
    assert _tree(status) == tree


@pytest.mark.parametrize(("rank", "identity"), [(0, b"\0\0"), (1, b"\1\0"), (258, b"\2\1")])
def test_engine_identity_is_the_rank_in_two_bytes(rank, identity):
    assert engine_identity(rank) == identity
    assert engine_rank(identity) == rank


@pytest.mark.parametrize("identity", [b"", b"\1", b"\0\1\2"])
def test_other_routing_ids_stand_for_no_rank(identity):
    assert engine_rank(identity) is None


def _logprobs(positions: int, width: int, ranks: int) -> Logprobs:
    ids = Tensor("<i4", (positions, width), bytes(range(4)) * positions * width)
    values = Tensor("<f4", (positions, width), bytes(4 * positions * width))
    return Logprobs(ids, values, Tensor("<i4", (ranks,), b"\x01\0\0\0" * ranks))


def test_logprobs_by_position() -> None:
    token = 0x03020100
    one = TokenLogprob(token, 0.0, 1, [(token, 0.0), (token, 0.0)])
    assert _logprobs(2, 3, 2).positions() == [one, one]
    assert _logprobs(1, 1, 1).positions() == [TokenLogprob(token, 0.0, 1, [])]
    assert _logprobs(0, 3, 0).positions() == []


def test_logprobs_that_do_not_fit_together() -> None:
    with pytest.raises(ValueError, match=r"of shapes \(2, 3\), \(2, 3\), \(1,\)"):
        _logprobs(2, 3, 1).positions()
