"""An engine that ends its handshake well and then does what no engine should (argv: port, act)."""

import os
import signal
import subprocess
import sys
import time
from typing import Any

import msgspec
import zmq

from enginecore_wire.handshake import HELLO, READY, EngineInit, EngineStatus, engine_identity
from enginecore_wire.outputs import ENGINE_CORE_DEAD

IDENTITY = engine_identity(0)
PAYLOAD: dict[Any, Any] = {
    "max_model_len": 2048, "num_gpu_blocks": 10, "block_size": 16, "dp_stats_address": None,
    "dtype": "float32", "vllm_version": "0.32.0", "world_size": 1, "data_parallel_size": 1,
    "tensor_parallel_size": 1, "pipeline_parallel_size": 1, "decode_context_parallel_size": 1,
    "data_parallel_rank": 0, "max_num_seqs": 8, "max_num_batched_tokens": 2048,
    "instance_id": "scripted", "supports_lora": False, "max_loras": 0,
}  # fmt: skip
DEEP = b"\x91" * 100_000 + b"\xc0"

encode = msgspec.msgpack.encode


def payload(act: str) -> bytes:
    """Return the READY payload."""
    if act == "deep payload":
        return bytes([0xDE, 0, len(PAYLOAD) + 1]) + encode(PAYLOAD)[3:] + encode("deep") + DEEP
    changes: dict[str, dict[Any, Any]] = {
        "no length": {"max_model_len": -5},
        "text length": {"max_model_len": "long"},
        "number as key": {5: 6},
    }
    return encode(PAYLOAD | changes.get(act, {}))


def bodies(request_id: str) -> list[bytes]:
    """Return what is no output, or somebody else's, and the request's end after it."""
    return [
        b"", b"\xc1", b"\x80", b"\x92\x00" + DEEP, b"\x93\x00\x90" + DEEP,
        encode([0, [[5, [1]]]]),
        encode([0, [["nobody", [1], None, None, None, 0]]]),
        encode([0, [], {"num_running_reqs": "many"}]),
        encode([0, [], None, 0.0, [123456789, None, [None, 1]]]),
        encode([0, [[request_id, [2**40]]]]),
        encode([0, [[request_id, [1], None, None, None, 0]] * 2]),
        encode([0, [[request_id, [1], None, None, None, 0]]]),
    ]  # fmt: skip


def main(port: str, act: str) -> None:
    if act == "orphan prints":
        for _ in range(4):
            subprocess.Popen(["yes"])
        os._exit(3)
    if act == "dead goes on":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    handshake, dealer = context.socket(zmq.DEALER), context.socket(zmq.DEALER)
    for socket in (handshake, dealer):
        socket.setsockopt(zmq.ROUTING_ID, IDENTITY)
    handshake.connect(f"tcp://127.0.0.1:{port}")
    handshake.send(encode(EngineStatus(HELLO, local=False, headless=True)))
    addresses = msgspec.msgpack.decode(handshake.recv(), type=EngineInit).addresses
    dealer.connect(addresses.inputs[0])
    dealer.send(payload(act))
    outputs = [context.socket(zmq.PUSH) for _ in addresses.outputs]
    for output, address in zip(outputs, addresses.outputs, strict=True):
        output.connect(address)
    for _ in range(1 + (act == "ready twice")):
        handshake.send(encode(EngineStatus(READY, local=False, headless=True)))
    while True:
        kind, body, *_ = dealer.recv_multipart()
        message = msgspec.msgpack.decode(body)
        if kind == b"\x03":
            slot, call_id, method, _args = message
            value = ["generate"] if method == "get_supported_tasks" else False
            for _ in range(1 + (act == "reply twice")):
                outputs[slot].send(encode([0, [], None, 1.0, [call_id, None, [None, value]]]))
        elif kind == b"\x00":
            answer(act, message[0], outputs, outputs[message[11]])


def answer(act: str, name: str, outputs: list[Any], output: Any) -> None:
    """Answer a request."""
    if act == "close one":
        outputs[2].close(0)
    elif act == "dead goes on":
        for each in outputs:
            each.send(ENGINE_CORE_DEAD)
        while True:
            output.send(encode([0, [[name, [1]]]]))
            time.sleep(0.001)
    elif act == "garbage":
        for body in bodies(name):
            output.send(body)
    else:
        output.send(encode([0, [[name, [7], None, None, None, 0]]]))


if __name__ == "__main__":
    main(*sys.argv[1:])
