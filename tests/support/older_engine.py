"""An engine that writes and reads messages as one vLLM release does (argv: port, release).

Positions and keys are those recorded from the release's wheel (tests/golden/vllm-releases.json),
so nothing here depends on the tables of enginecore_wire. A request with more positions than the
release has, or with something else where one of its fields belongs, ends the engine.
"""

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import zmq

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "vllm-releases.json"
DOCUMENT = json.loads(GOLDEN.read_text())
RELEASES = DOCUMENT["releases"]
READY = {
    "max_model_len": 2048, "num_gpu_blocks": 10, "block_size": 16, "dp_stats_address": None,
    "dtype": "float32", "world_size": 1, "data_parallel_size": 1, "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1, "decode_context_parallel_size": 1, "data_parallel_rank": 0,
    "max_num_seqs": 8, "max_num_batched_tokens": 2048, "instance_id": "old",
    "supports_lora": False, "max_loras": 0,
}  # fmt: skip
TYPES: dict[str, Any] = {
    "request_id": str, "prompt_token_ids": list, "sampling_params": dict, "pooling_params": None,
    "eos_token_id": int | None, "arrival_time": float, "lora_request": None,
    "cache_salt": str | None, "data_parallel_rank": None, "prompt_embeds": None,
    "prompt_is_token_ids": None, "client_index": int, "current_wave": int, "priority": int,
    "trace_headers": dict | None, "mm_features": None,
}  # fmt: skip
"""What the tests' requests have in each field."""

encode = msgspec.msgpack.encode


def fields(name: str, release: str) -> list[str]:
    """Return the fields of one of vLLM's classes in a release, in order."""
    found: dict[str, list[str]] = DOCUMENT["fields"][name]
    begun = [start for start in found if RELEASES.index(start) <= RELEASES.index(release)]
    return found[begun[-1]]


def read_request(body: bytes, release: str) -> dict[str, Any]:
    """Return a request's fields by name."""
    items = msgspec.msgpack.decode(body)
    names = fields("EngineCoreRequest", release)
    assert len(items) <= len(names), f"{len(items)} positions, {release} has {len(names)}"
    request = dict(zip(names, items, strict=False))
    for name, kind in TYPES.items():
        if name in request:
            msgspec.convert(request[name], kind, strict=True)
    return request


def outputs(request: dict[str, Any], release: str) -> list[Any]:
    """Return two outputs of a request: a token, and another with which it ends."""
    names = fields("EngineCoreOutput", release)
    common = {
        "request_id": request["request_id"], "num_cached_tokens": 5, "num_nans_in_logits": 3,
        "num_external_computed_tokens": 0, "prefill_stats": {"num_cached_tokens": 5},
        "trace_headers": request["trace_headers"],
    }  # fmt: skip
    eos = request.get("eos_token_id") or request["sampling_params"].get("_eos_token_id")
    return [
        [(common | given).get(name) for name in names]
        for given in (
            {"new_token_ids": [request["priority"]]},
            {"new_token_ids": [eos], "finish_reason": 0, "stop_reason": release},
        )
    ]


def main(port: str, release: str) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    handshake, dealer = context.socket(zmq.DEALER), context.socket(zmq.DEALER)
    for socket in (handshake, dealer):
        socket.setsockopt(zmq.ROUTING_ID, b"\0\0")
    handshake.connect(f"tcp://127.0.0.1:{port}")
    handshake.send(encode({"status": "HELLO", "local": False, "headless": True}))
    addresses = msgspec.msgpack.decode(handshake.recv())["addresses"]
    dealer.connect(addresses["inputs"][0])
    keys = fields("EngineCoreReadyResponse", release)
    ready = {key: (READY | {"vllm_version": release})[key] for key in keys if key in READY}
    dealer.send(encode(ready | ({"vllm_version": release} if "vllm_version" in keys else {})))
    sockets = [context.socket(zmq.PUSH) for _ in addresses["outputs"]]
    for output, address in zip(sockets, addresses["outputs"], strict=True):
        output.connect(address)
    handshake.send(encode({"status": "READY", "local": False, "headless": True}))
    while True:
        kind, body = dealer.recv_multipart()
        if kind == b"\x03":
            slot, call_id, method, _ = msgspec.msgpack.decode(body)
            value = ["generate"] if method == "get_supported_tasks" else False
            sockets[slot].send(encode([0, [], None, 1.0, [call_id, None, [None, value]]]))
        elif kind == b"\x00":
            request = read_request(body, release)
            for output in outputs(request, release):
                sockets[request["client_index"]].send(encode([0, [output], None, 1.0]))


if __name__ == "__main__":
    main(*sys.argv[1:])
