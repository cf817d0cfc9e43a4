"""vLLM's start-up handshake between an engine and whoever launched it.

Plain maps, no extensions. The engine says HELLO, gets INIT, loads its model, sends the READY
payload on every input socket and READY on the handshake socket, in either order.
"""

from typing import Any

import msgspec

HELLO = "HELLO"
READY = "READY"


class EngineStatus(msgspec.Struct, omit_defaults=False):
    """What an engine sends on the handshake socket: status is HELLO, then READY."""

    status: str
    local: bool = True
    headless: bool = False
    parallel_config_hash: str | None = None


class EngineAddresses(msgspec.Struct):
    """Where an engine dials: input i and output i belong to client i unless the lists differ
    in length, which engines accept (one input may serve many outputs)."""

    inputs: list[str]
    outputs: list[str]
    coordinator_input: str | None = None
    coordinator_output: str | None = None
    frontend_stats_publish_address: str | None = None


class EngineInit(msgspec.Struct):
    """The answer to HELLO; `parallel_config` stays empty unless engines run in lockstep."""

    addresses: EngineAddresses
    parallel_config: dict[str, Any] = {}


class ReadyPayload(msgspec.Struct):
    """What an engine tells each client once it can work; unknown keys are ignored.

    An engine has to send the first seventeen: vLLM's front end insists on them (since 0.29).
    Defaults stand for what engines of older releases do not tell; before 0.20 the frame that
    should have this is empty.
    """

    max_model_len: int
    num_gpu_blocks: int
    block_size: int = 0
    dp_stats_address: str | None = None
    dtype: str = ""
    vllm_version: str = ""
    world_size: int = 1
    data_parallel_size: int = 1
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    decode_context_parallel_size: int = 1
    data_parallel_rank: int = 0
    max_num_seqs: int = 0
    max_num_batched_tokens: int = 0
    instance_id: str = ""
    supports_lora: bool = False
    max_loras: int = 0
    mamba_block_size: int | None = None
    kv_cache_size_tokens: int | None = None
    kv_cache_max_concurrency: float | None = None
    kv_events_config: dict[str, Any] | None = None
    weight_transfer_backend: str | None = None
    enable_sleep_mode: bool = False
    supports_draft_weight_updates: bool = False
    effective_attention_block_size: int | None = None


def engine_identity(rank: int) -> bytes:
    """Return the routing id of the engine with rank `rank`: 2 bytes, little-endian."""
    return rank.to_bytes(2, "little")


def engine_rank(identity: bytes) -> int | None:
    """Return the rank that a routing id stands for, or None if it is not an engine's."""
    return int.from_bytes(identity, "little") if len(identity) == 2 else None
