"""Outputs with nothing but tokens: read as less, and not to be told from others."""

import copy
import pickle
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enginecore_client._faces.outputs import generated
from enginecore_wire.codec import MsgpackDecoder, MsgpackEncoder
from enginecore_wire.new_tokens import FEWEST, NewTokens, OutputsDecoder, complete, only_tokens
from enginecore_wire.outputs import (
    EngineCoreOutput,
    EngineCoreOutputs,
    FinishReason,
    Logprobs,
    PrefillStats,
    SchedulerStats,
    UtilityOutput,
)
from enginecore_wire.tensors import Tensor

SET: dict[str, Any] = {
    "new_logprobs": Logprobs(*[Tensor("<i4", (1, 1), b"\xc0" * 4)] * 3),
    "new_prompt_logprobs": [*[Tensor("<i8", (1, 1), b"\xc0" * 8)] * 3],
    "pooling_output": Tensor("<f4", (1,), b"\xc0" * 4),
    "finish_reason": FinishReason.LENGTH,
    "stop_reason": 2,
    "events": [],
    "kv_transfer_params": {},
    "ec_transfer_params": {"a": None},
    "trace_headers": {"traceparent": "00"},
    "prefill_stats": PrefillStats(3),
    "routed_experts": Tensor("|i1", (1,), b"\0"),
    "num_nans_in_logits": 1,
    "mm_cache_miss_hashes": [],
    "new_sampling_mask": [Tensor("<i4", (1,), bytes(4))],
    "spec_decode_metrics": {},
    "prompt_token_id_logprobs": Tensor("<f4", (1,), bytes(4)),
}  # fmt: skip
"""A value for each field but the two; one byte long where it can be."""


def encoded(message: EngineCoreOutputs) -> bytes:
    (body,) = MsgpackEncoder().encode(message)
    return bytes(body)


def plainly_decoded(body: bytes) -> EngineCoreOutputs:
    return MsgpackDecoder(EngineCoreOutputs).decode(body)


def outputs(count: int) -> list[EngineCoreOutput]:
    return [EngineCoreOutput(f"request-{i}", [i, 70_000 + i][: i % 3]) for i in range(count)]


def test_every_field_is_here() -> None:
    fields = msgspec.structs.fields(EngineCoreOutput)
    slim = NewTokens("r", [1])
    assert [*SET] == [field.name for field in fields[2:]]
    assert [getattr(slim, field.name) for field in fields[2:]] == [f.default for f in fields[2:]]
    assert (slim.index, slim.text) == (0, "")


@pytest.mark.parametrize("engine", [0, 127, 128, 255, 256, 65_535])
@pytest.mark.parametrize("count", [FEWEST, 15, 16, 300])
def test_messages_of_tokens_are_read_as_such(count: int, engine: int) -> None:
    message = EngineCoreOutputs(engine, outputs(count), timestamp=1.5, finished_requests=["x"])
    body = encoded(message)
    read = OutputsDecoder().decode(memoryview(body))
    assert {type(output) for output in read.outputs} == {NewTokens}
    assert type(read) is EngineCoreOutputs
    assert read == plainly_decoded(body) == message


@pytest.mark.parametrize(
    "more",
    [{"scheduler_stats": SchedulerStats(4)}, {"utility_output": UtilityOutput(3, "no")},
     {"wave_complete": 0}, {"start_wave": 1, "weight_version": "v"}],
    ids=lambda more: next(iter(more)),
)  # fmt: skip
def test_the_rest_of_the_message_is_read(more: dict[str, Any]) -> None:
    body = encoded(EngineCoreOutputs(outputs=outputs(20), **more))
    read = OutputsDecoder().decode(body)
    assert type(read.outputs[0]) is NewTokens
    assert read == plainly_decoded(body)


@pytest.mark.parametrize("where", [0, 7, 19])
@pytest.mark.parametrize("field", SET)
def test_one_output_with_more_has_all_of_them_read(field: str, where: int) -> None:
    message = EngineCoreOutputs(outputs=outputs(20))
    setattr(message.outputs[where], field, SET[field])
    body = encoded(message)
    read = OutputsDecoder().decode(body)
    assert {type(output) for output in read.outputs} == {EngineCoreOutput}
    assert getattr(read.outputs[where], field) != getattr(EngineCoreOutput("", []), field)
    assert read.outputs[:where] == plainly_decoded(body).outputs[:where]


def test_an_end_is_read_whatever_ends_like_outputs_that_have_none() -> None:
    """Seven nils of a connector, and eleven of other parts of the message."""
    for more in (
        {"kv_transfer_params": {"remote_block_ids": [None] * 7}},
        {"ec_transfer_params": {"blocks": [None] * 8}},
        {},
    ):
        for where in (0, 19):
            message = EngineCoreOutputs(outputs=outputs(20))
            stats = {"a": [None] * 11 + [0] + [None] * 4} if where == 19 else None
            message.scheduler_stats = SchedulerStats(kv_connector_stats=stats)
            message.outputs[where].finish_reason = FinishReason.LENGTH
            for field, value in more.items():
                setattr(message.outputs[where], field, value)
            assert OutputsDecoder().decode(encoded(message)) == message


@pytest.mark.parametrize("count", [0, 1, FEWEST - 1])
def test_few_outputs_are_not_looked_through(count: int) -> None:
    message = EngineCoreOutputs(outputs=outputs(count))
    message.finished_requests = ["some text that makes it longer" * 9]
    body = encoded(message)
    assert not only_tokens(body)
    assert OutputsDecoder().decode(body) == message


@given(st.binary(min_size=200, max_size=400))
@settings(max_examples=300, deadline=None)
def test_other_bytes_are_refused_as_ever(body: bytes) -> None:
    def result(decoder: Any) -> Any:
        try:
            return decoder.decode(body)
        except msgspec.DecodeError as error:
            return str(error)

    assert result(OutputsDecoder()) == result(MsgpackDecoder(EngineCoreOutputs))


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_a_damaged_message_is_read_as_ever_or_refused(data: st.DataObject) -> None:
    body = bytearray(encoded(EngineCoreOutputs(1, outputs(12))))
    place = data.draw(st.integers(0, len(body) - 1))
    body[place] = data.draw(st.integers(0, 255))
    try:
        expected = plainly_decoded(bytes(body))
    except msgspec.DecodeError:
        with pytest.raises(msgspec.DecodeError):
            OutputsDecoder().decode(bytes(body))
    else:
        assert OutputsDecoder().decode(bytes(body)) == expected


def test_it_passes_for_an_output() -> None:
    slim, whole = NewTokens("r", [1]), EngineCoreOutput("r", [1])
    assert isinstance(slim, EngineCoreOutput)
    assert slim == whole
    assert whole == slim
    assert slim == NewTokens("r", [1])
    assert slim != NewTokens("r", [2])
    assert slim != EngineCoreOutput("r", [1], finish_reason=FinishReason.STOP)
    assert slim != "r"
    for same in (whole, NewTokens("r", [1])):
        assert not slim != same  # noqa: SIM202 - the operator itself is meant
        assert not same != slim  # noqa: SIM202
    assert (complete(slim), complete(whole)) == (whole, whole)
    assert type(complete(slim)) is EngineCoreOutput
    assert [copy.copy(slim), pickle.loads(pickle.dumps(slim))]  # noqa: S301 - its own == [whole, whole]
    assert generated(slim, 1, "a") == generated(whole, 1, "a")
    slim.request_id = "s"
    assert slim.request_id == "s"


def test_engines_and_front_ends_read_it() -> None:
    body = encoded(EngineCoreOutputs(outputs=[NewTokens("r", [1])]))  # type: ignore[list-item]
    assert plainly_decoded(body).outputs == [EngineCoreOutput("r", [1])]
