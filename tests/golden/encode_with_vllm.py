"""Run in the vLLM environment: print, as one line of JSON, messages encoded by vLLM's own
encoder and the fields of vLLM's message types. record_vllm.py calls it."""

import base64
import dataclasses
import json
import typing

import msgspec
import numpy as np
import torch
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import (
    MultiModalBatchedField,
    MultiModalFeatureSpec,
    MultiModalFieldElem,
    MultiModalFlatField,
    MultiModalKwargsItem,
    MultiModalSharedField,
    PlaceholderRange,
)
from vllm.pooling_params import LateInteractionParams, PoolingParams
from vllm.sampling_params import (
    RepetitionDetectionParams,
    RequestOutputKind,
    SamplingParams,
    StructuredOutputsParams,
)
from vllm.v1.engine import (
    EngineCoreEvent,
    EngineCoreEventType,
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreReadyResponse,
    EngineCoreRequest,
    FinishReason,
    UtilityOutput,
)
from vllm.v1.kv_hints import KvHintAction, KvHintsEnvelope
from vllm.v1.metrics.stats import PrefillStats, PrefixCacheStats, SchedulerStats
from vllm.v1.outputs import LogprobsLists, LogprobsTensors, SamplingMaskLists
from vllm.v1.serial_utils import MsgpackEncoder, UtilityResult

TYPES = {
    "EngineCoreRequest": EngineCoreRequest,
    "SamplingParams": SamplingParams,
    "StructuredOutputs": StructuredOutputsParams,
    "RepetitionDetection": RepetitionDetectionParams,
    "PoolingParams": PoolingParams,
    "LateInteraction": LateInteractionParams,
    "LoRARequest": LoRARequest,
    "KvHints": KvHintsEnvelope,
    "KvHintAction": KvHintAction,
    "EngineCoreOutputs": EngineCoreOutputs,
    "EngineCoreOutput": EngineCoreOutput,
    "EngineCoreEvent": EngineCoreEvent,
    "UtilityOutput": UtilityOutput,
    "Logprobs": LogprobsLists,
    "PromptLogprobs": LogprobsTensors,
    "SamplingMask": SamplingMaskLists,
    "PrefillStats": PrefillStats,
    "PrefixCacheStats": PrefixCacheStats,
    "SchedulerStats": SchedulerStats,
    "ReadyPayload": EngineCoreReadyResponse,
}


def names(kind: type) -> list[str]:
    """Return the fields of a struct, dataclass or named tuple as they are encoded, in order."""
    if issubclass(kind, msgspec.Struct):
        return [field.encode_name for field in msgspec.structs.fields(kind)]
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    return list(typing.cast("typing.Any", kind)._fields)


def request(name: str, **changes: object) -> EngineCoreRequest:
    """Return a request with the nine positions that have no default, and `changes`."""
    given = dict.fromkeys(
        ("mm_features", "sampling_params", "pooling_params", "lora_request", "cache_salt",
         "data_parallel_rank"),
    )  # fmt: skip
    return EngineCoreRequest(
        **(given | {"request_id": name, "prompt_token_ids": [1, 2, 3], "arrival_time": 1.7e9}
           | changes)
    )  # fmt: skip


def full_sampling() -> SamplingParams:
    """Return sampling parameters none of which has its default."""
    structured = StructuredOutputsParams(json={"type": "object"}, whitespace_pattern=" ")
    structured._backend = "xgrammar"
    params = SamplingParams(
        presence_penalty=0.5, frequency_penalty=-0.5, repetition_penalty=1.1, temperature=0.7,
        watermarking=True, top_p=0.9, top_k=50, min_p=0.1, seed=1234, stop=["END"],
        stop_token_ids=[7, 8], ignore_eos=True, max_tokens=99, min_tokens=2, logprobs=2,
        prompt_logprobs=1, prompt_logprob_token_ids=np.array([[4, 5], [6, -1]], dtype=np.int32),
        prompt_logprob_start=0, logprob_token_ids=[4, 5], flat_logprobs=True,
        skip_special_tokens=False, spaces_between_special_tokens=False,
        include_stop_str_in_output=True, output_kind=RequestOutputKind.DELTA, stream_interval=3,
        skip_clone=True, structured_outputs=structured, logit_bias={9: -1.5},
        allowed_token_ids=[1, 2, 3], extra_args={"kv_transfer_params": {"remote": 1}},
        bad_words=["no"], skip_reading_prefix_cache=True, thinking_token_budget=12,
        repetition_detection=RepetitionDetectionParams(8, 2, 3), routed_experts_prompt_start=1,
        trace_decode_token_ids=[1],
    )  # fmt: skip
    params._eos_token_id = 2
    params._all_stop_token_ids.add(2)
    params._bad_words_token_ids = [[30], [31, 32]]
    params._watermarking_skipped = True
    params.output_text_buffer_length = 4
    return params


def image() -> MultiModalFeatureSpec:
    """Return an item that has data of every form and fields of every kind."""
    pixels = torch.arange(300, dtype=torch.float32).to(torch.bfloat16).reshape(3, 10, 10)
    small = torch.arange(4, dtype=torch.int64).reshape(2, 2)
    elements = {
        "pixel_values": (pixels, MultiModalBatchedField()),
        "grid": (small, MultiModalBatchedField(keep_on_cpu=True)),
        "patches": (pixels[:, ::2], MultiModalFlatField(slices=[slice(0, 2), slice(2, 3)], dim=1)),
        "windows": ([pixels[0], [small, 3, 2.5]], MultiModalFlatField(slices=[[slice(0, 1, 2)]], dim=0)),
        "scale": (0.5, MultiModalSharedField(batch_size=2)),
        "cached": (None, MultiModalSharedField(batch_size=2, keep_on_cpu=True)),
    }
    data = {key: MultiModalFieldElem(value, field) for key, (value, field) in elements.items()}
    return MultiModalFeatureSpec(
        data=MultiModalKwargsItem(data), modality="image", identifier="digest", mm_hash="digest",
        mm_position=PlaceholderRange(0, 2, torch.tensor([False, True])),
    )  # fmt: skip


def arrays() -> dict[str, list[object]]:
    """Return a number of arrays of every dtype, shape and stride."""
    of_torch = {
        name: [torch.arange(600).to(torch.uint8).bitwise_and(1).view(getattr(torch, name))]
        for name in (
            "bool uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 bfloat16 float32 "
            "float64 complex64 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz "
            "float8_e8m0fnu float4_e2m1fn_x2"
        ).split()
    }
    of_numpy = {
        name: [np.arange(600, dtype=np.uint8).__and__(1).view(name)]
        for name in "|b1 |u1 |i1 <u2 <i2 <u4 <i4 <u8 <i8 <f2 <f4 <f8 <c8".split()
    }
    square = torch.arange(400, dtype=torch.float32).reshape(20, 20)
    shapes = {
        "0-d": [torch.tensor(7), np.array(2.5)],
        "empty": [torch.zeros(0, 3), np.zeros((2, 0), dtype=np.int32)],
        "inline": [torch.ones(63), np.ones(31)],
        "own frame": [torch.ones(64), np.ones(32)],
        "transposed": [square.T, square.numpy().T],
        "strided": [square[::3, 1::2], square.numpy()[::3, 1::2]],
        "expanded": [torch.ones(1, 1).expand(9, 9)],
        "many": [torch.full((300,), n, dtype=torch.uint8) for n in range(5)],
    }
    return of_torch | of_numpy | shapes


def requests() -> dict[str, EngineCoreRequest]:
    """Return requests that use every part of ADD."""
    return {
        "minimal": request("minimal", sampling_params=SamplingParams()),
        "full sampling": request("full sampling", sampling_params=full_sampling()),
        "pooling": request(
            "pooling",
            pooling_params=PoolingParams(
                use_activation=True, dimensions=64, step_tag_id=3, returned_token_ids=[1],
                task="token_embed", requires_token_ids=True, skip_reading_prefix_cache=True,
                late_interaction_params=LateInteractionParams("score_doc", "key", 2),
                extra_kwargs={"a": 1},
            ),
        ),
        "everything else": request(
            "everything else", sampling_params=SamplingParams(),
            lora_request=LoRARequest("adapter", 5, "/adapters/5", load_inplace=True),
            cache_salt="salt", data_parallel_rank=3,
            prompt_embeds=torch.arange(256, dtype=torch.float32).to(torch.bfloat16).reshape(4, 64),
            prompt_is_token_ids=[True, False, True], client_index=6, current_wave=2, priority=-4,
            trace_headers={"traceparent": "00-1"}, resumable=True, external_req_id="caller's id",
            reasoning_ended=False, reasoning_parser_kwargs={"k": [1]}, abort_immediately=True,
            session_id="session",
            kv_hints=KvHintsEnvelope("1", "m", [KvHintAction("a", "pin", "1", {"tokens": 3})]),
        ),
        "small embeddings": request(
            "small embeddings", prompt_token_ids=None, sampling_params=SamplingParams(),
            prompt_embeds=torch.ones((1, 4), dtype=torch.float16),
        ),
        "image": request(
            "image", sampling_params=SamplingParams(),
            mm_features=[MultiModalFeatureSpec(
                data=None, modality="image", identifier="hash",
                mm_position=PlaceholderRange(1, 2, torch.tensor([True, False])), mm_hash="hash",
            )],
        ),
        "image with data": request(
            "image with data", sampling_params=SamplingParams(), mm_features=[image()]
        ),
    }  # fmt: skip


def outputs() -> dict[str, EngineCoreOutputs]:
    """Return outputs that use every part of EngineCoreOutputs."""
    ids = np.arange(6, dtype=np.int32).reshape(2, 3)
    floats = np.linspace(-3, 0, 6, dtype=np.float32).reshape(2, 3)
    many = torch.arange(300).reshape(60, 5)
    output = EngineCoreOutput(
        "req-0", [42, 43],
        new_logprobs=LogprobsLists(ids, floats, np.array([1, 2], dtype=np.int32), [0, 2]),
        new_prompt_logprobs_tensors=LogprobsTensors(many, many.float(), many[:, 0], [0, 60],
                                                    torch.tensor([0, 60])),
        pooling_output=torch.ones(3, dtype=torch.float64), finish_reason=FinishReason.REPETITION,
        stop_reason="repetition",
        events=[EngineCoreEvent(EngineCoreEventType.PREEMPTED, 2.5)],
        kv_transfer_params={"block_ids": [1]}, ec_transfer_params={"e": None},
        trace_headers={"traceparent": "00-1"}, prefill_stats=PrefillStats(9, 4, 5, 3, 2, 1),
        routed_experts=np.zeros((2, 2, 2), dtype=np.uint8), num_nans_in_logits=1,
        mm_cache_miss_hashes=["h"], new_sampling_mask=SamplingMaskLists(ids[0], ids[1], [0, 1]),
        prompt_token_id_logprobs=torch.zeros((1, 2)),
    )  # fmt: skip
    stats = SchedulerStats(
        num_running_reqs=3, num_waiting_reqs=2, num_skipped_waiting_reqs=1,
        num_kv_fetch_reqs_by_stage={"in_progress": 1}, step_counter=8, current_wave=4,
        kv_cache_usage=0.25, prefix_cache_stats=PrefixCacheStats(True, 1, 2, 3, 4, 5, 6),
        connector_prefix_cache_stats=PrefixCacheStats(), kv_connector_stats={"a": 1},
        ec_connector_stats={"b": 2}, waiting_lora_adapters={"x": 1}, running_lora_adapters={"y": 2},
    )  # fmt: skip
    full = EngineCoreOutputs(
        engine_index=1, outputs=[output], scheduler_stats=stats, timestamp=12.5,
        utility_output=UtilityOutput(2**64 - 1, "failed", UtilityResult({"a": [1, 2.5, None]})),
        finished_requests={"req-0"}, wave_complete=3, start_wave=4, weight_version="v7",
    )  # fmt: skip
    pooled = EngineCoreOutput(
        "pooled", [], pooling_output=torch.linspace(-1, 1, 576), finish_reason=FinishReason.STOP
    )
    rows, columns = 40, 21
    listed = EngineCoreOutput(
        "large", [1] * rows,
        new_logprobs=LogprobsLists(
            np.arange(rows * columns, dtype=np.int32).reshape(rows, columns),
            -np.arange(rows * columns, dtype=np.float32).reshape(rows, columns),
            np.arange(1, rows + 1, dtype=np.int32), None,
        ),
        routed_experts=np.arange(rows * 24 * 2, dtype=np.int16).reshape(rows, 24, 2),
    )  # fmt: skip
    return {
        "full": full,
        "empty": EngineCoreOutputs(timestamp=1.0),
        "large arrays": EngineCoreOutputs(outputs=[pooled, listed], timestamp=2.0),
    }


def main() -> None:
    """Print the messages and the fields."""
    encoder = MsgpackEncoder()
    encoded = {
        kind: {
            name: [base64.b64encode(bytes(frame)).decode() for frame in encoder.encode(message)]
            for name, message in messages.items()
        }
        for kind, messages in (
            ("requests", requests()), ("outputs", outputs()), ("arrays", arrays())
        )
    }
    fields = {name: names(kind) for name, kind in TYPES.items()}
    print(json.dumps({"encoded": encoded, "fields": fields}))


if __name__ == "__main__":
    main()
