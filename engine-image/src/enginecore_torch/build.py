"""Puts an EngineCore together from its settings: device, weights, cache, scheduler."""

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from enginecore_torch.architecture import LlamaConfig
from enginecore_torch.attention import CacheShape, KVCache
from enginecore_torch.blocks import BlockPool
from enginecore_torch.config import EngineConfig
from enginecore_torch.core import DEFAULT_OPTIONS, CoreOptions, EngineCore
from enginecore_torch.loader import load_checkpoint
from enginecore_torch.models.llama import LlamaModel
from enginecore_torch.processors import default_threads
from enginecore_torch.runner import ModelRunner
from enginecore_torch.sampler import Sampler
from enginecore_torch.scheduler import Scheduler, SchedulerLimits
from enginecore_torch.utilities import Utilities
from enginecore_wire.problems import RequestLimits

CPU_CACHE_BYTES = 1 << 30
"""Size of the KV cache on a CPU unless the settings say otherwise; touched as it fills."""

GPU_CACHE_SHARE = 0.9
"""Share of a GPU's free memory, once the weights are there, that the KV cache takes."""

_LOG = logging.getLogger(__name__)


class SettingsError(ValueError):
    """The settings do not fit the model or the machine; the text says which and how to mend it."""


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What came out of the settings: the model's shape and the sizes chosen."""

    model: LlamaConfig
    dtype: str
    device: str
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    num_blocks: int
    block_size: int


@dataclass(frozen=True, slots=True)
class BuiltEngine:
    """An engine and its facts."""

    core: EngineCore
    facts: EngineFacts


def build_engine(
    config: EngineConfig,
    options: CoreOptions = DEFAULT_OPTIONS,
    clock: Callable[[], float] = time.monotonic,
) -> BuiltEngine:
    """Load the model and return an engine ready for requests.

    Raises:
        FileNotFoundError: there is no model at the path.
        UnsupportedModelError: the model is none this engine can compute.
        SettingsError: the settings do not fit the model or the machine.
    """
    device = choose_device(config.device)
    torch.set_num_threads(config.threads or default_threads(os.environ))
    wanted = choose_dtype(config.dtype, device)
    _LOG.info("loading %s", config.model)
    checkpoint = load_checkpoint(config.model, wanted)
    shape = checkpoint.config
    dtype = wanted or checkpoint.tensors["model.embed_tokens.weight"].dtype
    longest = config.max_model_len or shape.max_positions
    if longest > shape.max_positions:
        raise SettingsError(
            f"--max-model-len: got {longest}, allowed: at most {shape.max_positions}, "
            "the positions the model was trained for"
        )
    model = LlamaModel(checkpoint, dtype, device, longest)
    num_blocks = _choose_blocks(config, shape, dtype, device, longest)
    max_model_len = _choose_length(config, longest, num_blocks)
    cache_shape = CacheShape(
        shape.num_layers, num_blocks, config.block_size, shape.num_kv_heads, shape.head_dim
    )
    cache = KVCache(cache_shape, dtype, device)
    limits = SchedulerLimits(
        config.max_num_seqs, config.max_num_batched_tokens, config.policy, config.prefix_caching
    )
    core = EngineCore(
        Scheduler(BlockPool(num_blocks, config.block_size), limits),
        ModelRunner(model, cache, Sampler(config.seed), device),
        RequestLimits(
            vocab_size=shape.vocab_size,
            max_model_len=max_model_len,
            max_logprobs=config.max_logprobs,
        ),
        clock,
        options,
        Utilities(config.profile_dir),
    )
    facts = EngineFacts(
        shape, str(dtype).removeprefix("torch."), str(device), max_model_len,
        config.max_num_seqs, config.max_num_batched_tokens, num_blocks, config.block_size,
    )  # fmt: skip
    _LOG.info("ready: %s", facts)
    return BuiltEngine(core, facts)


def choose_device(name: str) -> torch.device:
    """Return the device called `name`; `auto` is a GPU if there is one.

    Raises:
        SettingsError: a GPU is asked for and there is none.
    """
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise SettingsError("--device: got cuda, but PyTorch finds no GPU; use auto or cpu")
    return torch.device("cuda" if available and name != "cpu" else "cpu")


def choose_dtype(name: str, device: torch.device) -> torch.dtype | None:
    """Return the dtype called `name`; None stands for the checkpoint's own."""
    if name == "auto":
        return torch.float32 if device.type == "cpu" else None
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def _choose_blocks(
    config: EngineConfig,
    shape: LlamaConfig,
    dtype: torch.dtype,
    device: torch.device,
    longest: int,
) -> int:
    """Return the number of KV blocks: as told, or what fits and can be of use at all."""
    if config.num_blocks is not None:
        if config.num_blocks < 2:
            raise SettingsError("--num-gpu-blocks-override: got 1, allowed: at least 2")
        return config.num_blocks
    block = CacheShape(
        shape.num_layers, 1, config.block_size, shape.num_kv_heads, shape.head_dim
    ).block_bytes(dtype.itemsize)
    if config.kv_cache_bytes is not None:
        room = config.kv_cache_bytes
    elif device.type == "cuda":
        room = int(torch.cuda.mem_get_info(device)[0] * GPU_CACHE_SHARE)
    else:
        room = CPU_CACHE_BYTES
    useful = config.max_num_seqs * -(-longest // config.block_size) + 1
    blocks = min(room // block, useful)
    if blocks < 2:
        raise SettingsError(
            f"--kv-cache-bytes: {room} bytes hold no block of {block} bytes; "
            f"give at least {2 * block}"
        )
    return blocks


def _choose_length(config: EngineConfig, longest: int, num_blocks: int) -> int:
    """Return the longest sequence that the model and the cache can both hold."""
    capacity = (num_blocks - 1) * config.block_size
    if config.max_model_len is not None and capacity < longest:
        raise SettingsError(
            f"--max-model-len: {longest} tokens do not fit into the KV cache of {capacity} "
            "tokens; lower it, or raise --kv-cache-bytes or --num-gpu-blocks-override"
        )
    return min(longest, capacity)
