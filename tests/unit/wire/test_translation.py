"""ADD and EngineCoreOutputs at the positions of every release, in and out."""

import msgspec
import pytest

from enginecore_wire.codec import MsgpackEncoder
from enginecore_wire.dialects import NATIVE, Dialect, dialect_of
from enginecore_wire.layouts import release_of
from enginecore_wire.multimodal import MultiModalFeatureSpec, PlaceholderRange
from enginecore_wire.new_tokens import OutputsDecoder
from enginecore_wire.outputs import (
    EngineCoreOutput,
    EngineCoreOutputs,
    FinishReason,
    PrefillStats,
    UtilityOutput,
    UtilityResult,
)
from enginecore_wire.plain import UnsendableError
from enginecore_wire.requests import (
    EngineCoreRequest,
    KvHints,
    LateInteraction,
    LoRARequest,
    PoolingParams,
    SamplingParams,
    UtilityCall,
)
from enginecore_wire.tensors import Tensor
from enginecore_wire.translation import (
    not_carried,
    outputs_decoder,
    request_decoder,
    request_encoder,
)

Ext = msgspec.msgpack.Ext
TEXT = EngineCoreRequest(
    "r", [7, 8], sampling_params=SamplingParams(max_tokens=4, eos_token_id=2), arrival_time=1.5,
    cache_salt="s", client_index=3, current_wave=4, priority=5, trace_headers={"t": "1"},
)  # fmt: skip
WITHOUT_EOS, WITH_EOS = {"max_tokens": 4}, {"max_tokens": 4, "_eos_token_id": 2}
TAIL = ["s", None, None]
RELEASES = [(0, minor) for minor in range(11, 33)]

A = ["r", [7, 8], None, WITHOUT_EOS, None, 2, 1.5, None, *TAIL, 3, 4, 5, {"t": "1"}]
B = ["r", [7, 8], None, WITH_EOS, None, 1.5, None, *TAIL, 3, 4, 5, {"t": "1"}]
C = ["r", [7, 8], None, WITH_EOS, None, 1.5, None, *TAIL, None, 3, 4, 5, {"t": "1"},
     False, None, None, None, False]  # fmt: skip


def _tree(frames):
    return msgspec.msgpack.decode(frames[0], ext_hook=Ext)


@pytest.mark.parametrize(
    ("version", "tree"),
    [("0.11.0", A), ("0.13.0", A), ("0.16.2", A), ("0.17.0", B), ("0.20.1", B), ("0.21.0", C),
     ("0.27.0", C), ("0.28.0", [*C, None]), ("0.31.0", [*C, None, None]),
     ("0.32.0", [*C, None, None]), ("0.50.0", [*C, None, None])],
)  # fmt: skip
def test_add_of_a_text_request(version, tree):
    dialect = dialect_of(version)
    (body,) = request_encoder(dialect).encode(TEXT)
    assert msgspec.msgpack.decode(body) == tree
    assert msgspec.msgpack.decode(body)[dialect.client_index] == 3
    assert request_decoder(dialect).decode(body) == TEXT


@pytest.mark.parametrize("release", RELEASES)
def test_add_with_embeddings_and_an_adapter_survives_the_wire(release):
    request = msgspec.structs.replace(
        TEXT,
        prompt_token_ids=None,
        prompt_embeds=Tensor("bfloat16", (4, 64), bytes(512)),
        lora_request=LoRARequest("a", 1, "/a", "base"),
    )
    dialect = Dialect(release)
    body, *aux = request_encoder(dialect).encode(request)
    assert len(aux) == 1
    assert request_decoder(dialect).decode(body, aux) == request


@pytest.mark.parametrize(
    ("version", "tree"),
    [
        ("0.11.0", ["a", 1, "/a", None, None, "base", None]),
        ("0.14.0", ["a", 1, "/a", "base", None]),
        ("0.15.0", ["a", 1, "/a", "base", None, False]),
        ("0.22.0", ["a", 1, "/a", "base", None, False, False]),
        ("0.31.0", ["a", 1, "/a", "base", None, False, False]),
        ("0.32.0", ["a", 1, "/a", "base", False, False]),
    ],
)
def test_adapter_in_requests_and_calls(version, tree):
    encoder = request_encoder(dialect_of(version))
    adapter = LoRARequest("a", 1, "/a", "base")
    request = msgspec.structs.replace(TEXT, lora_request=adapter)
    assert tree in _tree(encoder.encode(request))
    call = UtilityCall(0, 7, "add_lora", [adapter])
    assert _tree(encoder.encode(call)) == [0, 7, "add_lora", [tree]]
    assert call.args == [adapter]


IMAGE = MultiModalFeatureSpec(None, "image", "i", PlaceholderRange(0, 1))
FIELDS = [
    ("prompt_is_token_ids", [True, False], (0, 21)),
    ("resumable", True, (0, 21)),
    ("reasoning_ended", False, (0, 21)),
    ("reasoning_parser_kwargs", {}, (0, 21)),
    ("abort_immediately", True, (0, 21)),
    ("session_id", "s", (0, 28)),
    ("kv_hints", KvHints("1", "m", []), (0, 31)),
    ("mm_features", [IMAGE], (0, 16)),
]


@pytest.mark.parametrize(
    ("version", "field", "value"),
    [
        (version, field, value)
        for version in ("0.12.0", "0.16.0", "0.18.0", "0.21.0", "0.30.0")
        for field, value, since in FIELDS
        if release_of(version) < since
    ],
)
def test_field_an_older_engine_has_no_place_for(version, field, value):
    request = msgspec.structs.replace(TEXT, **{field: value})
    dialect = dialect_of(version)
    assert not_carried(request, dialect) == field
    with pytest.raises(ValueError, match=rf"{field}: the engine is vLLM {version} \(layout"):
        request_encoder(dialect).encode(request)
    assert not_carried(request, NATIVE) is None


@pytest.mark.parametrize(
    ("version", "lost"),
    [("0.14.0", "lora_request.load_inplace"), ("0.21.0", "lora_request.is_3d_lora_weight")],
)
def test_option_of_an_adapter_an_older_engine_has_no_place_for(version, lost):
    adapter = LoRARequest("a", 1, "/a", **{lost.rpartition(".")[2]: True})
    request = msgspec.structs.replace(TEXT, lora_request=adapter)
    assert not_carried(request, dialect_of(version)) == lost
    assert not_carried(request, dialect_of("0.22.0")) is None
    with pytest.raises(ValueError, match=r"load_inplace: the engine is vLLM 0\.14"):
        request_encoder(dialect_of("0.14.0")).encode(
            UtilityCall(0, 1, "add_lora", [LoRARequest("a", 1, "/a", load_inplace=True)])
        )


@pytest.mark.parametrize(("field", "value", "since"), FIELDS)
def test_field_goes_to_engines_that_have_a_place_for_it(field, value, since):
    request = msgspec.structs.replace(TEXT, **{field: value})
    dialect = Dialect(since)
    body, *aux = request_encoder(dialect).encode(request)
    assert request_decoder(dialect).decode(body, aux) == request


POOLED = {"dimensions": 64, "step_tag_id": 3, "returned_token_ids": [1], "requires_token_ids": True}


@pytest.mark.parametrize(
    ("version", "task", "tree"),
    [
        ("0.11.0", "embed", [None, 64, True, None, None, 3, [1], "embed", True, None, 2]),
        ("0.11.0", "classify", [None, 64, None, True, None, 3, [1], "classify", True, None, 2]),
        ("0.11.1", "token_embed",
         [None, 64, True, None, None, None, 3, [1], "token_embed", True, None, None, 2]),
        ("0.13.0", "score",
         [None, 64, None, None, None, True, 3, [1], "score", True, None, None, 2]),
        ("0.14.0", "embed",
         [None, 64, None, None, None, True, 3, [1], "embed", True, None, None, 2]),
        ("0.16.0", "embed", [None, True, 64, 3, [1], "embed", True, None, None, 2]),
        ("0.17.0", "embed", [True, 64, 3, [1], "embed", True, None, None, 2]),
        ("0.18.0", "embed", [True, 64, 3, [1], "embed", True, None, None, None, 2]),
        ("0.32.0", "embed", [True, 64, 3, [1], "embed", True, None, None, None, 2]),
    ],
)  # fmt: skip
def test_pooling_parameters(version, task, tree):
    params = PoolingParams(use_activation=True, task=task, **POOLED)
    request = msgspec.structs.replace(TEXT, sampling_params=None, pooling_params=params)
    dialect = dialect_of(version)
    (body,) = request_encoder(dialect).encode(request)
    assert msgspec.msgpack.decode(body)[4] == tree
    assert request_decoder(dialect).decode(body) == request


@pytest.mark.parametrize(
    ("version", "changes", "lost"),
    [
        ("0.11.0", {"skip_reading_prefix_cache": True}, "skip_reading_prefix_cache"),
        ("0.17.0", {"late_interaction_params": LateInteraction("score_doc", "k")},
         "late_interaction_params"),
    ],
)  # fmt: skip
def test_pooling_parameter_an_older_engine_has_no_place_for(version, changes, lost):
    request = msgspec.structs.replace(
        TEXT, sampling_params=None, pooling_params=PoolingParams(task="embed", **changes)
    )
    assert not_carried(request, dialect_of(version)) == f"pooling_params.{lost}"
    assert not_carried(request, dialect_of("0.18.0")) is None


@pytest.mark.parametrize("version", ["0.11.0", "0.17.0", "0.32.0"])
def test_callers_own_id_is_not_missed(version):
    request = msgspec.structs.replace(TEXT, external_req_id="mine")
    assert not_carried(request, dialect_of(version)) is None


@pytest.mark.parametrize(("version", "least"), [("0.11.0", 10), ("0.17.0", 9), ("0.22.0", 9)])
def test_positions_engines_insist_on(version, least):
    dialect = dialect_of(version)
    tree = _tree(request_encoder(dialect).encode(TEXT))
    decoder = request_decoder(dialect, 100)
    assert decoder.decode(msgspec.msgpack.encode(tree[:least])).request_id == "r"
    assert decoder.decode(msgspec.msgpack.encode([*tree, {"new": 1}])) == TEXT
    with pytest.raises(msgspec.ValidationError, match=f"at least length {least}"):
        decoder.decode(msgspec.msgpack.encode(tree[: least - 1]))


@pytest.mark.parametrize("version", ["0.11.0", "0.17.0", "0.22.0", "0.32.0"])
@pytest.mark.parametrize("token", [-1, 100])
def test_prompt_is_held_to_the_vocabulary(version, token):
    dialect = dialect_of(version)
    (body,) = request_encoder(dialect).encode(
        msgspec.structs.replace(TEXT, prompt_token_ids=[0, 99, token])
    )
    with pytest.raises(msgspec.ValidationError, match=r"`\$\[1\]\[2\]`"):
        request_decoder(dialect, 100).decode(body)


EXPERTS = ["|u1", [2], Ext(3, b"ab")]
HEAD = ["r", [1, 2], None, None, None, 1, 42, [{"type": 1, "timestamp": 2.5}], {"kv": 1}]
TRACE = {"t": "1"}
KNOWN = EngineCoreOutput(
    "r", [1, 2], finish_reason=FinishReason.LENGTH, stop_reason=42,
    kv_transfer_params={"kv": 1}, trace_headers=TRACE,
)  # fmt: skip


@pytest.mark.parametrize(
    ("version", "rest", "more"),
    [
        ("0.11.0", [TRACE, 5], {"cached": (5, 0)}),
        ("0.12.0", [TRACE, 5, 6], {"cached": (5, 0), "num_nans_in_logits": 6}),
        ("0.14.0", [TRACE, 5, EXPERTS, 6],
         {"cached": (5, 0), "num_nans_in_logits": 6, "routed_experts": b"ab"}),
        ("0.16.0", [TRACE, 0, 4, EXPERTS, 6],
         {"cached": (0, 4), "num_nans_in_logits": 6, "routed_experts": b"ab"}),
        ("0.19.0", [TRACE, 0, 0, None, 6], {"num_nans_in_logits": 6}),
        ("0.20.0", [TRACE, {"num_cached_tokens": 5}, EXPERTS, 6],
         {"cached": (5, 0), "num_nans_in_logits": 6, "routed_experts": b"ab"}),
        ("0.25.0", [TRACE, {"num_cached_tokens": 5}, EXPERTS, 6],
         {"cached": (5, 0), "num_nans_in_logits": 6, "routed_experts": b"ab"}),
        ("0.26.0", [{"ec": 1}, TRACE, None, EXPERTS, 6],
         {"ec_transfer_params": {"ec": 1}, "num_nans_in_logits": 6, "routed_experts": b"ab"}),
        ("0.28.0", [None, TRACE, None, None, 0, ["h"]], {"mm_cache_miss_hashes": ["h"]}),
        ("0.33.0", [None, TRACE, None, None, 0, None, None, None, None, "new", [1]], {}),
    ],
)  # fmt: skip
def test_output_of_every_release(version, rest, more):
    body = msgspec.msgpack.encode([2, [[*HEAD, *rest], ["q", [3]]], None, 1.5, None, ["r"], 6, 7])
    message = outputs_decoder(dialect_of(version)).decode(body)
    first, second = message.outputs
    cached, experts = more.pop("cached", None), more.pop("routed_experts", None)
    if cached:
        more["prefill_stats"] = PrefillStats(
            num_cached_tokens=cached[0], num_external_cached_tokens=cached[1]
        )
    assert bytes(first.routed_experts.data if experts else b"") == (experts or b"")
    assert first == msgspec.structs.replace(
        KNOWN, events=first.events, routed_experts=first.routed_experts, **more
    )
    assert [event.timestamp for event in first.events] == [2.5]
    assert second == EngineCoreOutput("q", [3])
    assert (type(message), type(first)) == (EngineCoreOutputs, EngineCoreOutput)
    assert (message.engine_index, message.timestamp, message.finished_requests) == (2, 1.5, ["r"])
    assert (message.wave_complete, message.start_wave) == (6, 7)


def _listed(ids, values, ranks):
    logprobs = [ids, values, ranks]
    return msgspec.msgpack.encode([0, [["r", [7], logprobs]], None, 1.5])


def test_log_probabilities_that_come_as_lists_are_arrays_here():
    body = _listed([[7, 8], [9, 1]], [[-0.5, -1.0], [-0.25, -2.0]], [1, 2])
    (output,) = outputs_decoder(dialect_of("0.11.0")).decode(body).outputs
    logprobs = output.new_logprobs
    assert (logprobs.token_ids.dtype, logprobs.values.dtype) == ("<i4", "<f4")
    assert logprobs.token_ids.tolist() == [[7, 8], [9, 1]]
    assert logprobs.values.tolist() == [[-0.5, -1.0], [-0.25, -2.0]]
    assert logprobs.ranks.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("ids", "values", "ranks"),
    [([[7, 8], [9]], [[-0.5, -1.0], [0.0, 0.0]], [1, 2]), ([[7]], [[-0.5, 1.0]], [1]),
     ([[2**31]], [[0.0]], [1]), ([[7]], [[0.0]], [1, 2])],
)  # fmt: skip
def test_lists_that_are_no_array_are_refused(ids, values, ranks):
    with pytest.raises(msgspec.ValidationError):
        outputs_decoder(dialect_of("0.11.0")).decode(_listed(ids, values, ranks))


@pytest.mark.parametrize("version", ["0.11.1", "0.18.0", "0.32.0"])
def test_log_probabilities_are_arrays_in_every_other_release(version):
    arrays = [["<i4", [1, 1], Ext(3, bytes(4))], ["<f4", [1, 1], 1], ["<i4", [1], Ext(3, bytes(4))]]
    body = msgspec.msgpack.encode([0, [["r", [7], arrays]], None, 1.5])
    (output,) = outputs_decoder(dialect_of(version)).decode(body, [bytes(4)]).outputs
    assert output.new_logprobs.values.tolist() == [[0.0]]
    assert output.new_logprobs.cumulative is None


@pytest.mark.parametrize("release", RELEASES)
def test_reply_to_a_call_is_read_the_same_in_every_release(release):
    body = msgspec.msgpack.encode([0, [], None, 1.5, [2**64 - 1, None, [None, {"a": [1]}]]])
    (reply,) = [outputs_decoder(Dialect(release)).decode(body).utility_output]
    assert reply == UtilityOutput(2**64 - 1, None, UtilityResult(None, {"a": [1]}))


@pytest.mark.parametrize("reason", FinishReason)
@pytest.mark.parametrize("version", ["0.11.0", "0.18.0", "0.32.0"])
def test_reasons_to_finish(version, reason):
    body = msgspec.msgpack.encode([0, [["r", [], None, None, None, reason.value]]])
    (output,) = outputs_decoder(dialect_of(version)).decode(body).outputs
    assert output.finish_reason is reason


@pytest.mark.parametrize("version", ["0.11.0", "0.18.0", "0.22.0", "0.32.0"])
def test_reason_nobody_knows_is_named(version):
    body = msgspec.msgpack.encode([0, [["r", [], None, None, None, 9]]])
    with pytest.raises(
        msgspec.ValidationError, match=r"Invalid enum value 9 - at `\$\[1\]\[0\]\[5"
    ):
        outputs_decoder(dialect_of(version)).decode(body)


def test_newest_positions_need_no_translation():
    assert type(request_encoder()) is MsgpackEncoder
    assert type(outputs_decoder()) is OutputsDecoder
    assert type(outputs_decoder(dialect_of("0.26.0"))) is OutputsDecoder


@pytest.mark.parametrize("version", ["0.12.0", "0.18.0", "0.25.0"])
def test_pickles_are_not_written_to_older_engines_either(version):
    encoder = request_encoder(dialect_of(version))
    sampling = SamplingParams(extra_args={"a": [Ext(1, b".")]})
    for message in (
        msgspec.structs.replace(TEXT, sampling_params=sampling),
        UtilityCall(0, 1, "collective_rpc", [Ext(2, b".")]),
    ):
        with pytest.raises(UnsendableError, match="extension type"):
            encoder.encode(message)
