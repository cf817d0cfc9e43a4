"""The contract suite over vLLM's EngineCore as an object; pytest runs this in vLLM's environment.

The model is where the variable VLLM_TEST_MODEL says.
"""

import os

import pytest
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.engine.core import EngineCore
from vllm.v1.executor import Executor

from enginecore_client.testing.cells import VLLM, Cell
from enginecore_client.testing.engines import EngineUnderTest, Trait
from enginecore_client.testing.suite import contract_tests
from support.vllm_adapter import VllmCore

pytestmark = pytest.mark.may_leak("threads", "sockets", reason="vLLM's own, such as tqdm's monitor")


def make_core() -> VllmCore:
    config: VllmConfig = EngineArgs(
        model=os.environ["VLLM_TEST_MODEL"], dtype="float32", enforce_eager=True,
        max_model_len=1024, max_num_seqs=16, kv_cache_memory_bytes=256 << 20,
        enable_lora=True, max_lora_rank=8,
    ).create_engine_config()  # fmt: skip
    return VllmCore(EngineCore(config, Executor.get_class(config), log_stats=True))


def asks(_cell: Cell, behaviour: str) -> bool:
    """An engine that was shut down leaves threads behind, and another one cannot follow it."""
    return behaviour != "closing_ends_everything"


ENGINE = EngineUnderTest(
    name=VLLM,
    make_core=make_core,
    vocab_size=49152,
    traits=frozenset({Trait.REPEATABLE, Trait.REPEATS_TRACE}),
)

globals().update(contract_tests([ENGINE], asks=asks))
