"""Requests that would harm an engine are refused, each with field, value, limit and remedy."""

from math import nan
from typing import Any

import msgspec
import pytest

from enginecore_wire.codec import MsgpackEncoder
from enginecore_wire.control import RejectCode
from enginecore_wire.multimodal import MultiModalFeatureSpec, PlaceholderRange
from enginecore_wire.problems import RequestLimits
from enginecore_wire.prompt_rules import prompt_length
from enginecore_wire.requests import (
    EngineCoreRequest,
    KvHintAction,
    KvHints,
    LateInteraction,
    LoRARequest,
    OutputKind,
    PoolingParams,
    SamplingParams,
)
from enginecore_wire.tensors import Tensor
from enginecore_wire.validation import check_request, checked_decoder, decode_problem

VOCAB = 100
LIMITS = RequestLimits(vocab_size=VOCAB, max_model_len=16)
EMBEDS = RequestLimits(vocab_size=VOCAB, max_model_len=16, hidden_size=4)
LORA = RequestLimits(vocab_size=VOCAB, max_model_len=16, supports_lora=True)
POOLER = RequestLimits(vocab_size=VOCAB, max_model_len=16, tasks=frozenset({"embed", "classify"}))
SHORT = RequestLimits(vocab_size=VOCAB, max_model_len=16, prompt_tokens=3)
INVALID, TOO_LARGE = RejectCode.INVALID_REQUEST, RejectCode.TOO_LARGE


def _request(**changes):
    given = {"request_id": "r", "prompt_token_ids": [1, 2, 3], "sampling_params": SamplingParams()}
    return EngineCoreRequest(**(given | changes))


def _pooling(**changes):
    return _request(sampling_params=None, pooling_params=PoolingParams(**changes))


def _late(*late):
    return _pooling(task="embed", late_interaction_params=LateInteraction(*late))


def _embeds(rows, columns=4, dtype="bfloat16", item=2):
    return Tensor(dtype, (rows, columns), bytes(rows * columns * item))


@pytest.mark.parametrize(
    ("request_", "limits"),
    [
        (_request(), LIMITS),
        (_request(prompt_token_ids=[0, VOCAB - 1]), LIMITS),
        (_request(prompt_token_ids=[1] * 15), LIMITS),
        (_request(prompt_token_ids=[1] * 3), SHORT),
        (_request(request_id="x" * 1024), LIMITS),
        (_request(mm_features=[]), LIMITS),
        (_request(lora_request=LoRARequest("a", 1, "/a")), LORA),
        (_request(prompt_token_ids=None, prompt_embeds=_embeds(3)), EMBEDS),
        (_request(prompt_embeds=_embeds(3), prompt_is_token_ids=[True, False, True]), EMBEDS),
        (_pooling(task="embed"), POOLER),
        (_pooling(task="embed", step_tag_id=0, returned_token_ids=[0, VOCAB - 1]), POOLER),
        (_late("cache_query", "q", 1), POOLER),
        (_late("score_doc", "q"), POOLER),
        (_request(sampling_params=None, pooling_params=PoolingParams(task="embed"),
                  prompt_token_ids=[1] * 16), POOLER),
    ],
)  # fmt: skip
def test_accepted(request_, limits):
    assert check_request(request_, limits) is None


FEATURE = MultiModalFeatureSpec(None, "image", "i", PlaceholderRange(0, 1), "h")
DEEP: list[Any] = []
for _ in range(64):
    DEEP = [DEEP]

BAD = [
    (_request(request_id=""), LIMITS, "request_id", INVALID, "0 characters"),
    (_request(request_id="x" * 1025), LIMITS, "request_id", INVALID, "1 to 1024"),
    (_request(external_req_id="x" * 1025), LIMITS, "external_req_id", INVALID, "0 to 1024"),
    (_request(session_id="x" * 1025), LIMITS, "session_id", INVALID, "0 to 1024"),
    (_request(cache_salt=""), LIMITS, "cache_salt", INVALID, "1 to 1024"),
    (_request(arrival_time=nan), LIMITS, "arrival_time", INVALID, "got nan"),
    (_request(arrival_time=-1.0), LIMITS, "arrival_time", INVALID, "0 or more"),
    (_request(client_index=-1), LIMITS, "client_index", INVALID, "0 to 2147483647"),
    (_request(current_wave=2**31), LIMITS, "current_wave", INVALID, "got 2147483648"),
    (_request(data_parallel_rank=-1), LIMITS, "data_parallel_rank", INVALID, "got -1"),
    (_request(abort_immediately=True), LIMITS, "abort_immediately", INVALID, "never ends"),
    (_request(resumable=True), LIMITS, "resumable", INVALID, "streaming sessions"),
    (_request(reasoning_parser_kwargs={"a": DEEP}), LIMITS, "reasoning_parser_kwargs", INVALID,
     "at most 64 levels"),
    (_request(kv_hints=KvHints("1", "m", [KvHintAction("a", "t", "1", {"a": DEEP})])), LIMITS,
     "kv_hints.actions", INVALID, "at most 64 levels"),
    (_request(mm_features=[FEATURE]), LIMITS, "mm_features", INVALID, "1 features"),
    (_request(prompt_token_ids=None), LIMITS, "prompt_token_ids", INVALID, "nil"),
    (_request(prompt_token_ids=[]), LIMITS, "prompt_token_ids", INVALID, "empty prompt"),
    (_request(prompt_token_ids=[1] * 16), LIMITS, "prompt_token_ids", TOO_LARGE, "at most 15"),
    (_request(prompt_token_ids=[1] * 4), SHORT, "prompt_token_ids", TOO_LARGE, "at most 3"),
    (_request(prompt_token_ids=[1, VOCAB]), LIMITS, "prompt_token_ids[1]", INVALID, "0 to 99"),
    (_request(prompt_token_ids=[5, 1, -1]), LIMITS, "prompt_token_ids[2]", INVALID, "got -1"),
    (_request(prompt_is_token_ids=[True]), LIMITS, "prompt_is_token_ids", INVALID, "nil without"),
    (_request(prompt_embeds=_embeds(3)), LIMITS, "prompt_embeds", INVALID, "token ids only"),
    (_request(prompt_embeds=_embeds(3)), EMBEDS, "prompt_is_token_ids", INVALID, "got nil"),
    (_request(prompt_embeds=_embeds(2), prompt_is_token_ids=[True]), EMBEDS,
     "prompt_token_ids", INVALID, "3 ids"),
    (_request(prompt_embeds=_embeds(3), prompt_is_token_ids=[True]), EMBEDS,
     "prompt_is_token_ids", INVALID, "1 item,"),
    (_request(prompt_token_ids=None, prompt_embeds=_embeds(3), prompt_is_token_ids=[True] * 3),
     EMBEDS, "prompt_is_token_ids", INVALID, "a mask"),
    (_request(prompt_token_ids=None, prompt_embeds=_embeds(3, 5)), EMBEDS,
     "prompt_embeds", INVALID, "[prompt tokens, 4]"),
    (_request(prompt_token_ids=None, prompt_embeds=Tensor("float32", (4,), bytes(16))), EMBEDS,
     "prompt_embeds", INVALID, "shape [4]"),
    (_request(prompt_token_ids=None, prompt_embeds=_embeds(3, dtype="<f2")), EMBEDS,
     "prompt_embeds", INVALID, "dtype <f2"),
    (_request(prompt_token_ids=None, prompt_embeds=_embeds(3, dtype="int16")), EMBEDS,
     "prompt_embeds", INVALID, "dtype int16"),
    (_request(prompt_token_ids=None, prompt_embeds=_embeds(0)), EMBEDS,
     "prompt_embeds", INVALID, "empty prompt"),
    (_request(prompt_token_ids=None, prompt_embeds=_embeds(16)), EMBEDS,
     "prompt_embeds", TOO_LARGE, "16 tokens"),
    (_request(lora_request=LoRARequest("a", 1, "/a")), LIMITS, "lora_request", INVALID, "no LoRA"),
    (_request(lora_request=LoRARequest("a", 0, "/a")), LORA,
     "lora_request.lora_int_id", INVALID, "at least 1"),
    (_request(lora_request=LoRARequest("a", 2**63, "/a")), LORA,
     "lora_request.lora_int_id", INVALID, "at most"),
    (_request(lora_request=LoRARequest("a", 1, "")), LORA, "lora_request.lora_path", INVALID,
     "empty"),
    (_request(lora_request=LoRARequest("", 1, "/a")), LORA, "lora_request.lora_name", INVALID,
     "empty"),
    (_request(sampling_params=None), LIMITS, "sampling_params", INVALID, "neither"),
    (_request(pooling_params=PoolingParams(task="embed")), POOLER, "sampling_params", INVALID,
     "both"),
    (_request(), POOLER, "sampling_params", INVALID, "classify, embed"),
    (_pooling(task="embed"), LIMITS, "pooling_params.task", INVALID, "generate"),
    (_pooling(task="generate"), LIMITS, "pooling_params.task", INVALID, "'generate'"),
    (_pooling(), POOLER, "pooling_params.task", INVALID, "None"),
    (_pooling(task="embed", output_kind=OutputKind.DELTA), POOLER,
     "pooling_params.output_kind", INVALID, "FINAL_ONLY"),
    (_pooling(task="embed", dimensions=0), POOLER, "pooling_params.dimensions", INVALID, "got 0"),
    (_pooling(task="embed", step_tag_id=VOCAB), POOLER, "pooling_params.step_tag_id", INVALID,
     "0 to 99"),
    (_pooling(task="embed", returned_token_ids=[]), POOLER, "pooling_params.returned_token_ids",
     INVALID, "empty"),
    (_pooling(task="embed", returned_token_ids=[1, -1]), POOLER,
     "pooling_params.returned_token_ids", INVALID, "token id -1"),
    (_late("other", "q"), POOLER, "pooling_params.late_interaction_params.mode", INVALID,
     "cache_query or score_doc"),
    (_late("cache_query", ""), POOLER, "pooling_params.late_interaction_params.query_key",
     INVALID, "0 characters"),
    (_late("cache_query", "q", 0), POOLER, "pooling_params.late_interaction_params.query_uses",
     INVALID, "got 0"),
    (_pooling(task="embed", extra_kwargs={"a": DEEP}), POOLER, "pooling_params.extra_kwargs",
     INVALID, "at most 64 levels"),
    (_request(sampling_params=SamplingParams(temperature=5.0)), LIMITS,
     "sampling_params.temperature", INVALID, "got 5.0"),
]  # fmt: skip


@pytest.mark.parametrize(("request_", "limits", "field", "code", "words"), BAD)
def test_refused(request_, limits, field, code, words):
    problem = check_request(request_, limits)
    assert problem is not None
    assert (problem.field, problem.code) == (field, code)
    assert problem.message.startswith(f"{field}: got ")
    assert "; " in problem.message
    assert words in problem.message


def _body(request_):
    return MsgpackEncoder().encode(request_)[0]


def _tree(**changes):
    tree = msgspec.msgpack.decode(_body(_request()))
    for position, value in changes.items():
        tree[int(position.strip("_"))] = value
    return msgspec.msgpack.encode(tree)


def test_checked_decoder_returns_a_request():
    decoded = checked_decoder(VOCAB).decode(_body(_request(prompt_token_ids=[0, VOCAB - 1])))
    assert isinstance(decoded, EngineCoreRequest)
    assert decoded.prompt_token_ids == [0, VOCAB - 1]
    assert check_request(decoded, LIMITS, tokens_checked=True) is None


def test_checked_decoder_has_the_positions_of_the_request():
    checked = type(checked_decoder(VOCAB).decode(_body(_request())))
    assert checked.__struct_fields__ == EngineCoreRequest.__struct_fields__


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (_tree(_1=[1, VOCAB]), "prompt_token_ids[1]: got 100, expected `int` <= 99; send"),
        (_tree(_0=7), "request_id: got 7, expected `str`; send"),
        (_tree(_3={"temperature": None}), "sampling_params.temperature: got nil, expected `float`"),
        (_tree(_3={"seed": "s" * 200}), f"sampling_params.seed: got '{'s' * 79}…, expected"),
        (_tree(_6=["a", "b", "/a"]), "lora_request.lora_int_id: got 'b', expected `int`"),
        (_tree(_4=[*[None] * 5, False, None, [1, "q"]]),
         "pooling_params.late_interaction_params.mode: got 1, expected `str`"),
        (_tree(_21=["1", "m", 5]), "kv_hints: expected `object | null`, got `array`"),
        (_tree(_14={"a": 1}), "trace_headers[...]: expected `str`, got `int`"),
        (_tree(_14={1: "a"}), "trace_headers: expected `str`, got `int`"),
        (b"", "request: input data was truncated"),
    ],
)  # fmt: skip
def test_decode_problem_tells_the_value(body, text):
    with pytest.raises(msgspec.DecodeError) as caught:
        checked_decoder(VOCAB).decode(body)
    problem = decode_problem(caught.value, body)
    assert problem.message[: len(text)].lower() == text.lower()


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        (_tree(_1=[1, VOCAB]), "prompt_token_ids[1]", "<= 99"),
        (_tree(_1=[-1]), "prompt_token_ids[0]", ">= 0"),
        (_tree(_1=[2**64 - 1]), "prompt_token_ids[0]", "<= 99"),
        (_tree(_1=[1.5]), "prompt_token_ids[0]", "got `float`"),
        (_tree(_1=[True]), "prompt_token_ids[0]", "got `bool`"),
        (_tree(_1="text"), "prompt_token_ids", "got `str`"),
        (_tree(_0=7), "request_id", "got `int`"),
        (_tree(_3={"temperature": None}), "sampling_params.temperature", "got `None`"),
        (
            _tree(_3={"_all_stop_token_ids": None}),
            "sampling_params._all_stop_token_ids",
            "got `None`",
        ),
        (_tree(_3={"output_kind": 3}), "sampling_params.output_kind", "Invalid enum value 3"),
        (_tree(_3={"stream_interval": "1"}), "sampling_params.stream_interval", "got `str`"),
        (_tree(_3={"repetition_detection": [1]}), "sampling_params.repetition_detection", "array"),
        (_tree(_5="now"), "arrival_time", "got `str`"),
        (_tree(_6=["a", 1]), "lora_request", "at least length 3"),
        (_tree(_9=["bfloat16", [1, 4], 1]), "prompt_embeds", "frame 1 is not among"),
        (_tree(_14={"a": 1}), "trace_headers[...]", "got `int`"),
        (_tree(_21={"message_id": "m"}), "kv_hints", "protocol_version"),
        (msgspec.msgpack.encode(["r", [1], None, {}, None, 1.0, None, None]), "", "length 9"),
        (msgspec.msgpack.encode({"request_id": "r"}), "", "got `object`"),
        (_tree()[:-1], "", "truncated"),
        (b"", "", "truncated"),
    ],
)
def test_decode_problem_names_the_field(body, field, words):
    with pytest.raises(msgspec.DecodeError) as caught:
        checked_decoder(VOCAB).decode(body)
    problem = decode_problem(caught.value)
    assert problem.field == field
    assert problem.code is INVALID
    assert problem.message.startswith(field or "request")
    assert words in problem.message


@pytest.mark.parametrize(
    ("request_", "length"),
    [
        (_request(), 3),
        (_request(prompt_token_ids=None, prompt_embeds=_embeds(5)), 5),
        (_request(prompt_token_ids=None, prompt_embeds=Tensor("float32", (), bytes(4))), 0),
        (_request(prompt_token_ids=None), 0),
    ],
)
def test_prompt_length(request_, length):
    assert prompt_length(request_) == length
