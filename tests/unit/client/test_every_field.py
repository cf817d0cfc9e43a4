"""Every field of a request, and of all that is inside it, is checked before anything is sent."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from enginecore_client import EngineCoreRequest, RequestRejectedError, SamplingParams
from enginecore_wire.multimodal import (
    FieldKind,
    FieldOptions,
    MultiModalFeatureSpec,
    MultiModalItem,
    PlaceholderRange,
)
from enginecore_wire.requests import (
    KvHintAction,
    KvHints,
    LateInteraction,
    LoRARequest,
    PoolingParams,
    RepetitionDetection,
    StructuredOutputs,
)
from enginecore_wire.tensors import Tensor
from support.memory_link import MemoryLink

VOCAB, CONTEXT, HIDDEN = 1000, 32, 4
PROMPT = [1, 2, 3]
DEEP: dict[str, Any] = {}
for _ in range(80):
    DEEP = {"deeper": DEEP}


@dataclass(frozen=True)
class Row:
    """One value that may not be sent: the field it is in, and what the error says of it.

    `beside` are other fields of the same struct; `path` is where the error says the value is, if
    not at the field itself.
    """

    struct: type[msgspec.Struct]
    field: str
    value: Any
    words: str
    beside: dict[str, Any] = field(default_factory=dict)
    path: str = ""


def embeds(rows: int = 3, dtype: str = "float32", width: int = HIDDEN) -> Tensor:
    return Tensor(dtype, (rows, width), bytes(rows * width * (2 if "16" in dtype else 4)))


R, S, P = EngineCoreRequest, SamplingParams, PoolingParams
ROWS = [
    Row(R, "request_id", 5, "got 5, expected str"),
    Row(R, "request_id", "r" * 1100, "1109 characters, allowed: 1 to 1024"),
    Row(R, "prompt_token_ids", [1, VOCAB], "got 1000, expected `int` <= 999",
        path="prompt_token_ids[1]"),
    Row(R, "prompt_token_ids", [-1], "got -1", path="prompt_token_ids[0]"),
    Row(R, "prompt_token_ids", ["a"], "got 'a', expected `int`", path="prompt_token_ids[0]"),
    Row(R, "prompt_token_ids", 5, "got 5, expected `array | null`"),
    Row(R, "prompt_token_ids", "Hello", "got text ('Hello'), allowed: token ids; encode it first"),
    Row(R, "prompt_token_ids", [], "an empty prompt, allowed: at least one token"),
    Row(R, "prompt_token_ids", [1] * CONTEXT, "got 32 tokens, allowed: at most 31"),
    Row(R, "prompt_token_ids", None, "got nil, allowed: at least one token id"),
    Row(R, "mm_features", 5, "got 5, expected `array | null`"),
    Row(R, "sampling_params", None, "neither of sampling_params and pooling_params"),
    Row(R, "sampling_params", 5, "got 5, expected SamplingParams"),
    Row(R, "pooling_params", 5, "got 5, expected PoolingParams"),
    Row(R, "pooling_params", P(task="embed"), "both of sampling_params", path="sampling_params"),
    Row(R, "arrival_time", float("nan"), "got nan, allowed: seconds since 1970"),
    Row(R, "lora_request", 5, "got 5, expected `array | null`"),
    Row(R, "cache_salt", "", "0 characters, allowed: 1 to 1024"),
    Row(R, "data_parallel_rank", 3, "there is no engine 3; engines are 0"),
    Row(R, "data_parallel_rank", "0", "there is no engine '0'"),
    Row(R, "prompt_embeds", embeds(2), "3 ids, allowed: 2", path="prompt_token_ids"),
    Row(R, "prompt_embeds", embeds(3), "got nil, allowed: a mask", path="prompt_is_token_ids"),
    Row(R, "prompt_embeds", embeds(3, width=5), "shape [3, 5], allowed: [prompt tokens, 4]"),
    Row(R, "prompt_embeds", embeds(3, "int32"), "dtype int32, allowed: float16"),
    Row(R, "prompt_embeds", Tensor("float32", (12,), bytes(48)), "shape [12]"),
    Row(R, "prompt_embeds", embeds(CONTEXT), "32 tokens, allowed: at most 31",
        {"prompt_token_ids": None}),
    Row(R, "prompt_embeds", embeds(0), "an empty prompt", {"prompt_token_ids": None}),
    Row(R, "prompt_embeds", "text", "expected a numpy array or a torch tensor, got str"),
    Row(R, "prompt_is_token_ids", [True], "a mask, allowed: nil without prompt_embeds"),
    Row(R, "prompt_is_token_ids", [True], "1 item, allowed: 3", {"prompt_embeds": embeds(3)}),
    Row(R, "priority", 2**64, "got 18446744073709551616, which cannot travel"),
    Row(R, "priority", "high", "got 'high', expected `int`"),
    Row(R, "trace_headers", {"a": 1}, "expected `str`, got `int`", path="trace_headers[...]"),
    Row(R, "trace_headers", {"a": "b\r\nx: y"}, "a control character at 'a', allowed: text of one"),
    Row(R, "resumable", True, "got true, allowed: false; streaming sessions"),
    Row(R, "external_req_id", "r" * 1100, "1100 characters"),
    Row(R, "reasoning_ended", 5, "got 5, expected `bool | null`"),
    Row(R, "reasoning_parser_kwargs", DEEP, "deeper nesting, allowed: at most 64 levels"),
    Row(R, "abort_immediately", True, "got true, allowed: false; such a request never ends"),
    Row(R, "session_id", "s" * 1100, "1100 characters"),
    Row(R, "kv_hints", 5, "got 5, expected KvHints"),
    Row(KvHints, "protocol_version", 1, "got 1, expected `str`"),
    Row(KvHints, "message_id", 1, "got 1, expected `str`"),
    Row(KvHints, "actions", {}, "got {}, expected list"),
    Row(KvHints, "actions", [5], "got 5, expected KvHintAction", path="kv_hints.actions[0]"),
    Row(KvHintAction, "action_id", 1, "got 1, expected `str`"),
    Row(KvHintAction, "action_type", 1, "got 1, expected `str`"),
    Row(KvHintAction, "action_version", None, "got nil, expected `str`"),
    Row(KvHintAction, "payload", DEEP, "at most 64 levels", path="kv_hints.actions"),
    Row(S, "n", 2, "got 2, allowed: 1; use generate"),
    Row(S, "presence_penalty", 2.1, "got 2.1, allowed: -2 to 2"),
    Row(S, "frequency_penalty", -2.1, "got -2.1, allowed: -2 to 2"),
    Row(S, "repetition_penalty", 0.0, "got 0.0, allowed: above 0, finite"),
    Row(S, "temperature", 5.0, "got 5.0, allowed: 0 to 2"),
    Row(S, "watermarking", 1, "got 1, expected `bool | null`"),
    Row(S, "top_p", 0.0, "got 0.0, allowed: above 0, at most 1"),
    Row(S, "top_k", -2, "got -2, allowed: at least 1, or 0"),
    Row(S, "min_p", 1.1, "got 1.1, allowed: 0 to 1"),
    Row(S, "seed", 2**63, "got 9223372036854775808, allowed: 64-bit"),
    Row(S, "stop", ["a", ""], "an empty string"),
    Row(S, "stop_token_ids", [VOCAB], "token id 1000, allowed: 0 to 999"),
    Row(S, "ignore_eos", None, "got nil, expected `bool`"),
    Row(S, "max_tokens", 0, "got 0, allowed: 1 to 2147483647"),
    Row(S, "min_tokens", 17, "got 17, allowed: 0 to max_tokens (16)"),
    Row(S, "logprobs", 21, "got 21, allowed: 0 to 20; for certain tokens there is"),
    Row(S, "logprobs", -1, "got -1 (the whole vocabulary), allowed: 0 to 20"),
    Row(S, "prompt_logprobs", -2, "got -2, allowed: 0 to 20"),
    Row(S, "prompt_logprob_token_ids", Tensor("<f4", (2, 1), bytes(8)), "dtype <f4"),
    Row(S, "prompt_logprob_start", 1, "allowed: nil without prompt_logprob_token_ids"),
    Row(S, "logprob_token_ids", [1] * 129, "129 token ids, allowed: at most 128"),
    Row(S, "flat_logprobs", "yes", "got 'yes', expected `bool`"),
    Row(S, "detokenize", False, "got false, allowed: true when", {"stop": ["a"]}),
    Row(S, "skip_special_tokens", 0, "got 0, expected `bool`"),
    Row(S, "spaces_between_special_tokens", 0, "got 0, expected `bool`"),
    Row(S, "include_stop_str_in_output", 0, "got 0, expected `bool`"),
    Row(S, "output_kind", 7, "got 7, invalid enum value 7"),
    Row(S, "stream_interval", 0, "got 0, allowed: 1 to 2147483647"),
    Row(S, "skip_clone", 0, "got 0, expected `bool`"),
    Row(S, "output_text_buffer_length", -1, "got -1, allowed: 0 to"),
    Row(S, "structured_outputs", 5, "got 5, expected StructuredOutputs"),
    Row(S, "logit_bias", {VOCAB: 1.0}, "token id 1000, allowed: 0 to 999"),
    Row(S, "logit_bias", {5: float("nan")}, "got nan", path="sampling_params.logit_bias[5]"),
    Row(S, "allowed_token_ids", [], "an empty array, allowed: nil, or at least one"),
    Row(S, "extra_args", {"a": 2**64}, "which cannot travel"),
    Row(S, "extra_args", {"a": float("inf")}, "got inf, allowed: finite numbers"),
    Row(S, "extra_args", {"a": msgspec.msgpack.Ext(1, b"")}, "which cannot travel: extension"),
    Row(S, "bad_words", [""], "an empty string"),
    Row(S, "skip_reading_prefix_cache", 0, "got 0, expected `bool | null`"),
    Row(S, "thinking_token_budget", -2, "got -2, allowed: 0 or more, or -1"),
    Row(S, "repetition_detection", [1], "expected `object | null`, got `array`"),
    Row(S, "routed_experts_prompt_start", 4, "got 4, allowed: 0 to the prompt's length (3)"),
    Row(S, "trace_decode_token_ids", [1], "a trace, allowed: nil"),
    Row(S, "eos_token_id", VOCAB, "got 1000, allowed: 0 to 999"),
    Row(S, "all_stop_token_ids", [-1], "token id -1, allowed: 0 to 999"),
    Row(S, "watermarking_skipped", 0, "got 0, expected `bool`"),
    Row(S, "bad_words_token_ids", [[VOCAB]], "token id 1000, allowed: 0 to 999"),
    Row(StructuredOutputs, "json", DEEP, "deeper nesting, allowed: at most 64 levels"),
    Row(StructuredOutputs, "regex", 5, "got 5, expected `str | null`"),
    Row(StructuredOutputs, "choice", [], "an empty choice"),
    Row(StructuredOutputs, "grammar", 5, "got 5, expected `str | null`"),
    Row(StructuredOutputs, "json_object", False, "got false, allowed: true, or nil"),
    Row(StructuredOutputs, "structural_tag", "[" * 90 + "]" * 90, "deeper nesting"),
    Row(StructuredOutputs, "disable_any_whitespace", 0, "got 0, expected `bool`"),
    Row(StructuredOutputs, "disable_additional_properties", 0, "got 0, expected `bool`"),
    Row(StructuredOutputs, "whitespace_pattern", 5, "got 5, expected `str | null`"),
    Row(StructuredOutputs, "backend", None, "got nil, allowed: the name of a grammar library",
        {"regex": "a"}),
    Row(StructuredOutputs, "backend_was_auto", 0, "got 0, expected `bool`"),
    Row(RepetitionDetection, "max_pattern_size", "x", "got 'x', expected `int`"),
    Row(RepetitionDetection, "min_pattern_size", 3, "got 3, allowed: 0 to max_pattern_size (2)",
        {"max_pattern_size": 2, "min_count": 2}),
    Row(RepetitionDetection, "min_count", 1, "got 1, allowed: at least 2",
        {"max_pattern_size": 2}),
    Row(P, "use_activation", 0, "got 0, expected `bool | null`"),
    Row(P, "dimensions", 0, "got 0, allowed: at least 1"),
    Row(P, "step_tag_id", VOCAB, "got 1000, allowed: 0 to 999"),
    Row(P, "returned_token_ids", [VOCAB], "token id 1000, allowed: 0 to 999"),
    Row(P, "task", "generate", "got 'generate', allowed: one of the engine's tasks"),
    Row(P, "requires_token_ids", 0, "got 0, expected `bool`"),
    Row(P, "skip_reading_prefix_cache", 0, "got 0, expected `bool | null`"),
    Row(P, "late_interaction_params", 5, "got 5, expected `array | null`"),
    Row(P, "extra_kwargs", DEEP, "at most 64 levels"),
    Row(P, "output_kind", 0, "got CUMULATIVE, allowed: FINAL_ONLY"),
    Row(LateInteraction, "mode", "x", "got 'x', allowed: cache_query or score_doc"),
    Row(LateInteraction, "query_key", "", "0 characters, allowed: 1 to 1024"),
    Row(LateInteraction, "query_uses", 0, "got 0, allowed: 1 to"),
    Row(LoRARequest, "lora_name", "", "an empty string"),
    Row(LoRARequest, "lora_int_id", 0, "got 0, allowed: at least 1"),
    Row(LoRARequest, "lora_path", "", "an empty string"),
    Row(LoRARequest, "base_model_name", 5, "got 5, expected `str | null`"),
    Row(LoRARequest, "load_inplace", 0, "got 0, expected `bool`"),
    Row(LoRARequest, "is_3d_lora_weight", 0, "got 0, expected `bool`"),
    Row(MultiModalFeatureSpec, "data", None, "nil only with the mm_hash"),
    Row(MultiModalFeatureSpec, "modality", "smell", "got 'smell', allowed: one of image"),
    Row(MultiModalFeatureSpec, "identifier", "", "0 characters, allowed: 1 to 1024"),
    Row(MultiModalFeatureSpec, "mm_position", 5, "got 5, expected `object`"),
    Row(MultiModalFeatureSpec, "mm_hash", "", "0 characters, allowed: 1 to 1024"),
    Row(PlaceholderRange, "offset", 3, "got 3, allowed: 0 to 2"),
    Row(PlaceholderRange, "length", 4, "got 4, allowed: 1 to 3"),
    Row(PlaceholderRange, "is_embed", Tensor("bool", (2,), bytes(2)), "shape [1]"),
    Row(MultiModalItem, "data", Tensor("<f4", (1,), bytes(4)), "dtype <f4, allowed: torch's"),
    Row(MultiModalItem, "field", 5, "expected `array`, got `int`",
        path="mm_features[0].data[...].field"),
    Row(FieldKind, "name", "round", "got 'round', allowed: batched, flat or shared",
        path="mm_features[0].data.pixels.field"),
    Row(FieldKind, "options", 5, "expected `object`, got `int`",
        path="mm_features[0].data[...].field.options"),
    Row(FieldOptions, "slices", [[1]], "start, stop, step"),
    Row(FieldOptions, "dim", 99, "got 99"),
    Row(FieldOptions, "batch_size", 5, "nothing for the kind flat"),
    Row(FieldOptions, "keep_on_cpu", 0, "expected `bool`, got `int`",
        path="mm_features[0].data[...].field.options.keep_on_cpu"),
]  # fmt: skip

OVERWRITTEN = {(R, "client_index"), (R, "current_wave")}
"""What the client always sets itself, whatever the caller wrote."""

INSIDE: dict[type[msgspec.Struct], tuple[str, dict[str, Any], Callable[[Any], dict[str, Any]]]] = {
    # where the struct is, what else it holds, and the request's fields around it
    R: ("", {}, lambda _: {}),
    KvHints: ("kv_hints.", {"protocol_version": "1", "message_id": "m", "actions": []},
              lambda each: {"kv_hints": each}),
    KvHintAction: ("kv_hints.actions[0].",
                   {"action_id": "a", "action_type": "t", "action_version": "1", "payload": {}},
                   lambda each: {"kv_hints": KvHints("1", "m", [each])}),
    S: ("sampling_params.", {}, lambda each: {"sampling_params": each}),
    StructuredOutputs: ("sampling_params.structured_outputs.", {"backend": "xgrammar"},
                        lambda each: {"sampling_params": S(structured_outputs=each)}),
    RepetitionDetection: ("sampling_params.repetition_detection.", {},
                          lambda each: {"sampling_params": S(repetition_detection=each)}),
    P: ("pooling_params.", {"task": "embed"},
        lambda each: {"pooling_params": each, "sampling_params": None}),
    LateInteraction: ("pooling_params.late_interaction_params.",
                      {"mode": "score_doc", "query_key": "k"},
                      lambda each: {"pooling_params": P(task="embed", late_interaction_params=each),
                                    "sampling_params": None}),
    LoRARequest: ("lora_request.", {"lora_name": "a", "lora_int_id": 1, "lora_path": "/a"},
                  lambda each: {"lora_request": each}),
    MultiModalFeatureSpec: (
        "mm_features[0].",
        {"data": {"pixels": MultiModalItem(1.0, FieldKind.batched())}, "modality": "image",
         "identifier": "i", "mm_position": PlaceholderRange(0, 1)},
        lambda each: {"mm_features": [each]}),
    PlaceholderRange: ("mm_features[0].mm_position.", {"offset": 0, "length": 1},
                       lambda each: {"mm_features": [feature(1.0, place=each)]}),
    MultiModalItem: ("mm_features[0].data.pixels.", {"data": 1.0, "field": FieldKind.batched()},
                     lambda each: {"mm_features": [feature(1.0, item=each)]}),
    FieldKind: ("mm_features[0].data.pixels.field.", {"name": "batched"},
                lambda each: {"mm_features": [feature(1.0, each)]}),
    FieldOptions: ("mm_features[0].data.pixels.field.", {"slices": [[0, 1, 1]]},
                   lambda each: {"mm_features": [feature(1.0, FieldKind("flat", each))]}),
}  # fmt: skip


def feature(
    data: Any,
    kind: FieldKind | None = None,
    place: PlaceholderRange | None = None,
    item: MultiModalItem | None = None,
) -> MultiModalFeatureSpec:
    item = item or MultiModalItem(data, kind or FieldKind.batched())
    return MultiModalFeatureSpec(
        {"pixels": item}, "image", "i", place or PlaceholderRange(0, 1), "h"
    )


def encode_name(struct: type[msgspec.Struct], field: str) -> str:
    return next(f.encode_name for f in msgspec.structs.fields(struct) if f.name == field)


def request(row: Row) -> EngineCoreRequest:
    _, others, around = INSIDE[row.struct]
    fields: dict[str, Any] = {
        "request_id": "r", "prompt_token_ids": PROMPT, "sampling_params": SamplingParams()
    }  # fmt: skip
    own = others | row.beside | {row.field: row.value}
    fields |= own if row.struct is R else around(row.struct(**own))
    return EngineCoreRequest(**fields)


def connected() -> MemoryLink:
    """Return a client of an engine that takes everything there is."""
    link = MemoryLink("a", ready=False)
    link.answer(
        link.pod("a"),
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        modalities=("image",),
        engine={"max_model_len": CONTEXT, "supports_lora": True},
    )
    return link


@pytest.mark.parametrize(
    "row", ROWS, ids=[f"{row.struct.__name__}.{row.field}-{row.words[:24]}" for row in ROWS]
)
def test_refused_before_it_is_sent(row: Row) -> None:
    link = connected()
    with pytest.raises(RequestRejectedError) as caught:
        link.core.requests.add(request(row), object(), link.now)
    prefix = INSIDE[row.struct][0]
    path = row.path or f"{prefix}{encode_name(row.struct, row.field)}"
    assert caught.value.field == path
    assert str(caught.value).startswith(f"{path}: ")
    assert row.words.lower() in str(caught.value).lower()
    link.run()
    assert (link.pod("a").adds, link.core.unfinished) == ([], 0)


@pytest.mark.parametrize("struct", INSIDE)
def test_the_table_has_every_field(struct: type[msgspec.Struct]) -> None:
    held = {row.field for row in ROWS if row.struct is struct}
    held |= {field for owner, field in OVERWRITTEN if owner is struct}
    assert held == set(struct.__struct_fields__)


def structs_inside(struct: Any, seen: set[Any]) -> set[Any]:
    """Return all structs that the fields of one can hold."""
    if isinstance(struct, type) and issubclass(struct, msgspec.Struct):
        if struct not in seen:
            seen.add(struct)
            for field in msgspec.structs.fields(struct):
                structs_inside(field.type, seen)
    else:
        for inner in getattr(struct, "__args__", ()):
            structs_inside(inner, seen)
    return seen


def test_the_table_has_every_struct() -> None:
    assert structs_inside(EngineCoreRequest, set()) == set(INSIDE)


@pytest.mark.parametrize("struct", INSIDE)
def test_what_the_rows_change_is_taken_as_it_is(struct: type[msgspec.Struct]) -> None:
    link = connected()
    _, others, around = INSIDE[struct]
    fields = {"regex": "a"} if struct is StructuredOutputs else {}
    given: dict[str, Any] = {
        "request_id": "r", "prompt_token_ids": PROMPT, "sampling_params": SamplingParams()
    }  # fmt: skip
    if struct is MultiModalFeatureSpec:
        fields["mm_hash"] = "h"
    given |= {} if struct is R else around(struct(**(others | fields)))
    link.core.requests.add(EngineCoreRequest(**given), object(), link.now)
    link.run()
    assert len(link.pod("a").adds) == 1


@pytest.mark.parametrize(("name", "sent"), [("client_index", 5), ("current_wave", 0)])
def test_what_the_client_sets_itself(name: str, sent: int) -> None:
    link = MemoryLink("a", ready=False)
    link.answer(link.pod("a"), slot=5)
    link.core.requests.add(request(Row(R, name, "nonsense", "")), object(), link.now)
    link.run()
    assert [getattr(add, name) for add in link.pod("a").adds] == [sent]


@pytest.mark.parametrize(
    "beside",
    [
        {"prompt_token_ids": None},
        {"prompt_is_token_ids": [True, False, True]},
    ],
)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_embeddings_reach_the_engine(dtype: str, beside: dict[str, Any]) -> None:
    link = connected()
    link.core.requests.add(
        request(Row(R, "prompt_embeds", embeds(3, dtype), "", beside)), object(), link.now
    )
    link.run()
    (sent,) = link.pod("a").adds
    assert sent.prompt_embeds == embeds(3, dtype)
    assert sent.prompt_token_ids == (None if "prompt_token_ids" in beside else PROMPT)


def test_max_tokens_may_be_more_than_the_context_has_room_for() -> None:
    link = connected()
    link.core.requests.add(request(Row(S, "max_tokens", 10 * CONTEXT, "")), object(), link.now)
    link.run()
    (sent,) = link.pod("a").adds
    assert sent.sampling_params is not None
    assert sent.sampling_params.max_tokens == 10 * CONTEXT
