"""Frames of a real vLLM 0.32 (tests/golden/record_vllm.py) against our message types."""

import json
from base64 import b64decode
from pathlib import Path

import msgspec
import pytest

from enginecore_wire import handshake, outputs, requests
from enginecore_wire.codec import MsgpackDecoder, MsgpackEncoder
from enginecore_wire.outputs import (
    ENGINE_CORE_DEAD,
    EngineCoreOutputs,
    EventType,
    FinishReason,
)
from enginecore_wire.problems import RequestLimits
from enginecore_wire.requests import EngineCoreRequest, RequestType, UtilityCall
from enginecore_wire.validation import check_request, checked_decoder

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "vllm-0.32"
EXCHANGES = json.loads((GOLDEN / "frames.json").read_text())["exchanges"]
ENCODED = json.loads((GOLDEN / "encoded.json").read_text())
FIELDS = json.loads((GOLDEN / "fields.json").read_text())
READY = next(e for e in EXCHANGES if e["channel"] == "input from engine")
VOCAB_SIZE = 49152


def _frames(texts):
    return [b64decode(text) for text in texts]


def _tree(frames):
    """Return the message as plain data, each buffer in its place whichever way it travelled."""
    aux = frames[1:]

    def resolve(node):
        if isinstance(node, list):
            if len(node) == 3 and isinstance(node[0], str) and type(node[2]) is int and aux:
                return [node[0], node[1], ("buffer", bytes(aux[node[2] - 1]))]
            return [resolve(item) for item in node]
        if isinstance(node, dict):
            return {key: resolve(value) for key, value in node.items()}
        return node

    def buffer(code, data):
        return ("buffer", bytes(data)) if code == 3 else ("extension", code)

    return resolve(msgspec.msgpack.decode(frames[0], ext_hook=buffer))


def _again(kind, frames):
    """Return the tree of what our type makes of `frames` and encodes again."""
    return _tree(MsgpackEncoder().encode(MsgpackDecoder(kind).decode(frames[0], frames[1:])))


def _messages(prefix):
    return [
        pytest.param(e["name"], _frames(e["frames"]), id=f"{number}-{e['name']}")
        for number, e in enumerate(EXCHANGES)
        if e["channel"].startswith(prefix)
    ]


def _encoded(kind):
    return [pytest.param(_frames(f), id=name) for name, f in ENCODED[kind].items()]


def _outputs():
    """Yield every EngineCoreOutputs recorded, with the name of its exchange."""
    decoder = MsgpackDecoder(EngineCoreOutputs)
    for exchange in EXCHANGES:
        frames = _frames(exchange["frames"])
        if exchange["channel"].startswith("output") and frames != [ENGINE_CORE_DEAD]:
            yield exchange["name"], decoder.decode(frames[0], frames[1:])


def _of(name):
    return [output for where, m in _outputs() if where == name for output in m.outputs]


@pytest.mark.parametrize("name", FIELDS)
def test_our_types_have_the_fields_of_vllms(name):
    ours = next(
        getattr(module, name) for module in (requests, outputs, handshake) if hasattr(module, name)
    )
    names = [field.encode_name for field in msgspec.structs.fields(ours)]
    if ours.__struct_config__.array_like:
        assert len(names) == len(FIELDS[name])
    else:
        assert sorted(names) == sorted(FIELDS[name])


@pytest.mark.parametrize("kind", [EngineCoreRequest, requests.SamplingParams, EngineCoreOutputs])
def test_positions_and_names_of_the_outer_types_are_vllms(kind):
    names = [field.encode_name for field in msgspec.structs.fields(kind)]
    assert set(names) == set(FIELDS[kind.__name__])
    if kind.__struct_config__.array_like:
        assert names == FIELDS[kind.__name__]


@pytest.mark.parametrize(("name", "frames"), _messages("output"))
def test_recorded_output_loses_nothing(name, frames):
    if frames == [ENGINE_CORE_DEAD]:
        assert name == "death"
        return
    assert len(msgspec.msgpack.decode(frames[0])) == len(EngineCoreOutputs.__struct_fields__)
    assert _again(EngineCoreOutputs, frames) == _tree(frames)


@pytest.mark.parametrize("frames", _encoded("outputs"))
def test_output_with_every_field_loses_nothing(frames):
    assert _again(EngineCoreOutputs, frames) == _tree(frames)


@pytest.mark.parametrize("frames", _encoded("requests"))
def test_request_of_vllms_encoder_loses_nothing(frames):
    ours, theirs = _again(EngineCoreRequest, frames), _tree(frames)
    if theirs[3] is not None and theirs[3].get("structured_outputs"):
        theirs[3]["structured_outputs"] = _without_defaults(theirs[3]["structured_outputs"])
    for feature in theirs[2] or ():
        for item in (feature["data"] or {}).values():
            item["field"][1] = _without_defaults(item["field"][1])
    assert ours == theirs


def _without_defaults(structured):
    """vLLM encodes these whole; we leave out what has its default."""
    return {key: value for key, value in structured.items() if value not in (None, False, 0)}


def test_request_with_every_sampling_field_uses_them_all():
    frames = _frames(ENCODED["requests"]["full sampling"])
    assert set(_tree(frames)[3]) == set(FIELDS["SamplingParams"]) - {"n", "detokenize"}


@pytest.mark.parametrize("name", ["minimal", "everything else", "small embeddings"])
def test_checked_decoder_reads_what_vllm_encodes(name):
    frames = _frames(ENCODED["requests"][name])
    request = checked_decoder(VOCAB_SIZE).decode(frames[0], frames[1:])
    assert request.request_id == name


@pytest.mark.parametrize(("name", "frames"), _messages("input to engine"))
def test_what_the_engine_took_passes_the_checks_and_what_it_refused_does_not(name, frames):
    kind, body = frames
    if kind != RequestType.ADD:
        assert kind in {RequestType.ABORT, RequestType.UTILITY}
        return
    request = checked_decoder(VOCAB_SIZE).decode(body)
    ready = msgspec.msgpack.decode(_frames(READY["frames"])[0], type=handshake.ReadyPayload)
    limits = RequestLimits(vocab_size=VOCAB_SIZE, max_model_len=ready.max_model_len)
    problem = check_request(request, limits, tokens_checked=True)
    refused = {
        "no bound": "sampling_params.max_tokens",
        "choice": "sampling_params.structured_outputs.choice",
        "no grammar library": "sampling_params.structured_outputs._backend",
        "death": "sampling_params.logit_bias",
    }
    assert (problem.field if problem else None) == refused.get(name)


@pytest.mark.parametrize(("name", "frames"), _messages("input to engine"))
def test_utility_calls_are_whole(name, frames):
    if frames[0] == RequestType.UTILITY:
        call = msgspec.msgpack.decode(frames[1], type=UtilityCall)
        assert msgspec.msgpack.decode(frames[1]) == msgspec.to_builtins(call)
        assert name in {f"utility {call.method}", "pause"}


def test_ready_payload():
    tree = msgspec.msgpack.decode(_frames(READY["frames"])[0])
    assert list(tree) == FIELDS["ReadyPayload"]
    ready = msgspec.convert(tree, handshake.ReadyPayload)
    assert msgspec.to_builtins(ready) == tree
    assert ready.vllm_version.startswith("0.32")


@pytest.mark.parametrize(("name", "frames"), _messages("handshake"))
def test_handshake_messages_are_whole(name, frames):
    tree = msgspec.msgpack.decode(frames[0])
    kind = handshake.EngineStatus if "status" in tree else handshake.EngineInit
    again = msgspec.to_builtins(msgspec.convert(tree, kind))
    assert {key: value for key, value in again.items() if value is not None} == tree
    assert name == "start"


@pytest.mark.parametrize(
    ("name", "reason", "stop_reason", "tokens"),
    [
        ("plain", FinishReason.LENGTH, None, 4),
        ("bias", FinishReason.STOP, 11, 1),
        ("least tokens", FinishReason.LENGTH, None, 4),
        ("repetition", FinishReason.REPETITION, "repetition_detected", 3),
        ("no grammar library", FinishReason.ERROR, None, 0),
        ("no bound", FinishReason.ERROR, None, 0),
    ],
)
def test_how_requests_ended(name, reason, stop_reason, tokens):
    given = _of(name)
    assert [output.finish_reason for output in given[:-1]] == [None] * (len(given) - 1)
    assert (given[-1].finish_reason, given[-1].stop_reason) == (reason, stop_reason)
    assert sum(len(output.new_token_ids) for output in given) == tokens


def test_first_output_tells_events_and_where_the_prompt_came_from():
    first, *rest = _of("cached prompt again")
    assert [event.type for event in first.events] == [EventType.QUEUED, EventType.SCHEDULED]
    assert first.prefill_stats.num_prompt_tokens == 300
    assert first.prefill_stats.num_cached_tokens == 256
    assert {output.prefill_stats for output in rest} == {None}


def test_logprobs_are_arrays_with_the_sampled_token_first():
    for output in _of("logprobs"):
        logprobs = output.new_logprobs
        assert logprobs.token_ids.shape == logprobs.values.shape == (1, 4)
        assert logprobs.token_ids.tolist()[0][0] == output.new_token_ids[0]
        assert logprobs.ranks.tolist() == [1]
        assert max(logprobs.values.tolist()[0]) <= 0.0


def test_prompt_logprobs_are_tensors_in_frames_of_their_own():
    (found,) = [o.new_prompt_logprobs for o in _of("prompt logprobs") if o.new_prompt_logprobs]
    assert found.token_ids.shape == found.values.shape == (79, 5)
    assert found.ranks.shape == (79,)
    assert found.values.dtype == "float32"
    assert all(value <= 0.0 for row in found.values.tolist() for value in row)


def test_death_reaches_every_client():
    told = [e["channel"] for e in EXCHANGES if _frames(e["frames"]) == [ENGINE_CORE_DEAD]]
    assert sorted(told) == ["output 0", "output 1"]


def test_engine_ends_what_it_aborts_itself_and_is_silent_about_a_clients_abort():
    assert _of("pause")[-1].finish_reason is FinishReason.ABORT
    assert {
        o.finish_reason for _, m in _outputs() for o in m.outputs if o.request_id == "aborted"
    } == {None}


def test_failed_utility_call_carries_the_reason_in_place_of_a_result():
    (reply,) = [m.utility_output for where, m in _outputs() if where == "utility no_such_method"
                and m.utility_output]  # fmt: skip
    assert "no_such_method" in reply.failure_message
    assert reply.result is None
