"""The control operations as methods: `sleep()` and, to be awaited, `sleep_async()`.

Names only; what an operation is stands in `ops`.
"""

from collections.abc import Callable, Coroutine
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

from enginecore_client import ops

P = ParamSpec("P")
R = TypeVar("R")


class _Caller(Protocol):
    def call(self, op: ops.Op[R], /) -> R: ...


class _AsyncCaller(Protocol):
    async def call_async(self, op: ops.Op[R], /) -> R: ...


class Control(Generic[P, R]):
    """A method that calls one operation and returns its result."""

    def __init__(self, op: Callable[P, ops.Op[R]]) -> None:
        self._op = op
        self.__doc__ = op.__doc__

    def __get__(self, client: _Caller, owner: type[Any]) -> Callable[P, R]:
        op = self._op

        def method(*args: P.args, **kwargs: P.kwargs) -> R:
            return client.call(op(*args, **kwargs))

        return method


class AsyncControl(Generic[P, R]):
    """The same, to be awaited."""

    def __init__(self, op: Callable[P, ops.Op[R]]) -> None:
        self._op = op
        self.__doc__ = op.__doc__

    def __get__(
        self, client: _AsyncCaller, owner: type[Any]
    ) -> Callable[P, Coroutine[Any, Any, R]]:
        op = self._op

        async def method(*args: P.args, **kwargs: P.kwargs) -> R:
            return await client.call_async(op(*args, **kwargs))

        return method


class Controls:
    """The operations, both forms of each; `call` and `call_async` carry them out."""

    get_supported_tasks = Control(ops.GetSupportedTasks)
    is_sleeping = Control(ops.IsSleeping)
    sleep = Control(ops.Sleep)
    wake_up = Control(ops.WakeUp)
    pause_scheduler = Control(ops.PauseScheduler)
    resume_scheduler = Control(ops.ResumeScheduler)
    is_scheduler_paused = Control(ops.IsSchedulerPaused)
    reset_prefix_cache = Control(ops.ResetPrefixCache)
    reset_mm_cache = Control(ops.ResetMMCache)
    reset_encoder_cache = Control(ops.ResetEncoderCache)
    profile = Control(ops.Profile)
    list_loras = Control(ops.ListLoras)
    add_lora = Control(ops.AddLora)
    remove_lora = Control(ops.RemoveLora)
    pin_lora = Control(ops.PinLora)
    release_kv_cache_memory = Control(ops.ReleaseKvCacheMemory)
    execute_dummy_batch = Control(ops.ExecuteDummyBatch)
    save_sharded_state = Control(ops.SaveShardedState)
    collective_rpc = Control(ops.CollectiveRpc)
    set_weight_version = Control(ops.SetWeightVersion)
    get_weight_version = Control(ops.GetWeightVersion)
    compute_weight_checksums = Control(ops.ComputeWeightChecksums)
    get_kv_cache_group_metadata = Control(ops.GetKvCacheGroupMetadata)

    get_supported_tasks_async = AsyncControl(ops.GetSupportedTasks)
    is_sleeping_async = AsyncControl(ops.IsSleeping)
    sleep_async = AsyncControl(ops.Sleep)
    wake_up_async = AsyncControl(ops.WakeUp)
    pause_scheduler_async = AsyncControl(ops.PauseScheduler)
    resume_scheduler_async = AsyncControl(ops.ResumeScheduler)
    is_scheduler_paused_async = AsyncControl(ops.IsSchedulerPaused)
    reset_prefix_cache_async = AsyncControl(ops.ResetPrefixCache)
    reset_mm_cache_async = AsyncControl(ops.ResetMMCache)
    reset_encoder_cache_async = AsyncControl(ops.ResetEncoderCache)
    profile_async = AsyncControl(ops.Profile)
    list_loras_async = AsyncControl(ops.ListLoras)
    add_lora_async = AsyncControl(ops.AddLora)
    remove_lora_async = AsyncControl(ops.RemoveLora)
    pin_lora_async = AsyncControl(ops.PinLora)
    release_kv_cache_memory_async = AsyncControl(ops.ReleaseKvCacheMemory)
    execute_dummy_batch_async = AsyncControl(ops.ExecuteDummyBatch)
    save_sharded_state_async = AsyncControl(ops.SaveShardedState)
    collective_rpc_async = AsyncControl(ops.CollectiveRpc)
    set_weight_version_async = AsyncControl(ops.SetWeightVersion)
    get_weight_version_async = AsyncControl(ops.GetWeightVersion)
    compute_weight_checksums_async = AsyncControl(ops.ComputeWeightChecksums)
    get_kv_cache_group_metadata_async = AsyncControl(ops.GetKvCacheGroupMetadata)
