"""Valid messages to start from, each with the target it is meant for."""

import json
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path

import msgspec

from enginecore_wire.codec import MsgpackEncoder
from enginecore_wire.coordination import EngineLoad, FirstRequest, LoadReport
from enginecore_wire.dialects import Dialect
from enginecore_wire.multimodal import (
    FieldKind,
    MultiModalFeatureSpec,
    MultiModalItem,
    PlaceholderRange,
)
from enginecore_wire.requests import EngineCoreRequest, LoRARequest, SamplingParams, UtilityCall
from enginecore_wire.tensors import Tensor
from enginecore_wire.translation import request_encoder
from fuzz.targets import TARGETS

GOLDEN = Path(__file__).resolve().parents[1] / "golden"

Seed = tuple[str, list[bytes]]
"""The name of a target and the frames of a message for it."""


def seeds() -> list[Seed]:
    """Return all seeds, in an order that never changes."""
    return [*_of_vllm(), *_of_protocol(), *_of_other_releases(), *_made()]


def _of_vllm() -> Iterator[Seed]:
    directory = GOLDEN / "vllm-0.32"
    encoded = json.loads((directory / "encoded.json").read_text())
    for frames in encoded["requests"].values():
        yield "request, checked", _bytes(frames)
        yield "request 0.32", _bytes(frames)
    for frames in encoded["outputs"].values():
        yield "outputs", _bytes(frames)
    for exchange in json.loads((directory / "frames.json").read_text())["exchanges"]:
        frames = _bytes(exchange["frames"])
        channel = exchange["channel"]
        if channel.startswith("output"):
            yield "outputs", frames
        elif channel == "input from engine":
            yield "ReadyPayload", frames
        elif channel.startswith("handshake"):
            yield ("EngineStatus" if b"status" in frames[0] else "EngineInit"), frames
        elif len(frames) > 1:
            kinds = {b"\0": "request, checked", b"\1": "ids", b"\3": "UtilityCall"}
            yield kinds[frames[0]], frames[1:]


def _of_protocol() -> Iterator[Seed]:
    document = json.loads((GOLDEN / "protocol" / "v1.json").read_text())
    for entry in document:
        yield "control", [bytes.fromhex(frame) for frame in entry["frames"]]


def _of_other_releases() -> Iterator[Seed]:
    request = EngineCoreRequest(
        "r", [1, 2, 3], sampling_params=SamplingParams(max_tokens=4, eos_token_id=2),
        arrival_time=1.7e9, lora_request=LoRARequest("a", 1, "/a", "base"),
        prompt_embeds=Tensor("float16", (40, 4), bytes(320)), trace_headers={"a": "b"},
    )  # fmt: skip
    for name in TARGETS:
        kind, _, release = name.rpartition(" ")
        if kind == "request" and release != "checked":
            dialect = Dialect(_release(release))
            yield name, [bytes(frame) for frame in request_encoder(dialect).encode(request)]
        if kind == "outputs":
            full = [_VALUES.get(field) for field in Dialect(_release(release)).output]
            yield name, [msgspec.msgpack.encode([0, [full, ["q", [2]]], None, 1.5, None, ["r"]])]


_VALUES = {
    "request_id": "r", "new_token_ids": [1, 2], "finish_reason": 1, "stop_reason": "end",
    "events": [{"type": 1, "timestamp": 2.5}], "kv_transfer_params": {"a": [1]},
    "trace_headers": {"a": "b"}, "num_cached_tokens": 3, "num_external_computed_tokens": 2,
    "num_nans_in_logits": 1, "prefill_stats": {"num_prompt_tokens": 4},
    "routed_experts": ["|u1", [2], msgspec.msgpack.Ext(3, b"ab")],
}  # fmt: skip


def _made() -> Iterator[Seed]:
    encoder = MsgpackEncoder()
    arrays = [Tensor("<f4", (2, 2), bytes(16)), Tensor("bfloat16", (4, 64), bytes(512)),
              Tensor("int64", (), bytes(8)), Tensor("|b1", (0, 3), b"")]  # fmt: skip
    feature = MultiModalFeatureSpec(
        {"pixels": MultiModalItem([arrays[1], 3, [arrays[0].with_torch_dtype()]],
                                  FieldKind.flat([slice(0, 4)])),
         "grid": MultiModalItem(None, FieldKind.shared(2))},
        "image", "digest", PlaceholderRange(0, 2, Tensor("bool", (2,), b"\0\1")), "digest",
    )  # fmt: skip
    for name, message in (
        ("arrays", arrays),
        ("request 0.32", EngineCoreRequest("r", [1, 2], [feature])),
        ("request, checked", EngineCoreRequest("r", [1, 2], [feature])),
        ("UtilityCall", UtilityCall(0, 2**64 - 1, "collective_rpc", ["f", 1.5, [], {"a": 1}])),
        ("LoadReport", LoadReport([EngineLoad(1, 2, 0.5)], 3, True)),
        ("FirstRequest", FirstRequest(b"\1\0", 3)),
        ("EngineInit", {"addresses": {"inputs": ["a"], "outputs": ["b"]}, "parallel_config": {}}),
        ("anything", [{"a": [1, -1, 2.5, None, True, b"x", "y"], 3: {"b": ()}}]),
    ):
        yield name, [bytes(frame) for frame in encoder.encode(message)]


def _release(text: str) -> tuple[int, int]:
    major, minor = text.split(".")
    return int(major), int(minor)


def _bytes(frames: list[str]) -> list[bytes]:
    return [b64decode(frame) for frame in frames]
