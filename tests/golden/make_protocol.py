"""Write the golden frames of this project's control messages, one file per protocol version.

    python tests/golden/make_protocol.py

writes tests/golden/protocol/v<PROTOCOL_VERSION>.json: for every message with all its fields set,
the frames in hex and the fields in JSON. A file of a released version is never written again (the
script refuses): tests/unit/wire/test_golden_protocol.py reads all of them, so that client N
goes on understanding N-1. Give --unreleased to write the file of a version still in the making.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from enginecore_wire.control import (
    Bye,
    ControlMessage,
    Draining,
    Hello,
    Limits,
    PhaseChange,
    Ping,
    Pong,
    Ready,
    Reject,
    Replaced,
    Stats,
    Timers,
    Unknown,
)
from enginecore_wire.frames import encode_control
from enginecore_wire.outputs import PrefixCacheStats, SchedulerStats
from enginecore_wire.version import PROTOCOL_VERSION

TARGET = Path(__file__).resolve().parent / "protocol"
NONCE = bytes(range(1, 9))
ENGINE = {"max_model_len": 8192, "num_gpu_blocks": 364, "block_size": 16, "dtype": "bfloat16"}


def messages() -> list[ControlMessage]:
    """Return one message of every type, no field at its default."""
    return [
        Hello(protocol=1, protocol_minimum=1, nonce=NONCE, name="golden", layouts=("C",)),
        Ready(
            protocol=1, layout="C", name="chat-0", rank=3, epoch=2, slot=5, nonce=NONCE,
            live_clients=4, outputs_sent=1234, requests=["a-1", "b-2"], engine=ENGINE,
            vocab_size=49152, hidden_size=576, model_name="smollm2", runtime="torch",
            runtime_version="0.1.0",
            limits=Limits(frame_bytes=1024, in_flight=7, prompt_tokens=512),
            timers=Timers(2.0, 8.0, 10.0, 120.0, 30.0),
        ),
        Ping(sequence=7),
        Pong(sequence=7, nonce=NONCE, epoch=2, outputs_sent=1234, live_clients=4),
        Stats(
            engine_index=3,
            timestamp=12.5,
            scheduler_stats=SchedulerStats(
                num_running_reqs=3, num_waiting_reqs=2, kv_cache_usage=0.25,
                prefix_cache_stats=PrefixCacheStats(requests=1, queries=40, hits=16),
            ),
        ),
        Draining(reason="rollout", deadline_seconds=60.0),
        Replaced(reason="grace ended"),
        Unknown(type=3),
        Reject(code="too_large", message="too long", field="prompt_token_ids", request_id="a-1"),
        Reject(code="unknown_method", message="no such call", field="method", call_id=2**64 - 1),
        Bye(),
        PhaseChange(phase="Loading", reason="reading weights", since_seconds=3.5),
    ]  # fmt: skip


def document() -> list[dict[str, Any]]:
    """Return what goes into the file: message, frames, fields."""
    return [
        {
            "message": type(message).__name__,
            "frames": [frame.hex() for frame in encode_control(message)],
            "fields": msgspec.to_builtins(message),
        }
        for message in messages()
    ]


def main() -> None:
    """Write the file of the present version."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--unreleased", action="store_true", help="replace an existing file")
    arguments = parser.parse_args()
    path = TARGET / f"v{PROTOCOL_VERSION}.json"
    if path.exists() and not arguments.unreleased:
        parser.error(f"{path} exists; a released version's frames do not change")
    path.write_text(json.dumps(document(), indent=1) + "\n")
    sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
