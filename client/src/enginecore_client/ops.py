"""Control operations: each declared once, with its arguments, result and method name.

An operation is a value. `client.call(Sleep(level=1))` and `client.sleep(level=1)` are the same;
mypy knows the result of both. How the replies of several engines become one is part of
the wire (enginecore_wire.utility).
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Final, Generic, Literal, TypeVar, get_args

import msgspec

from enginecore_client.errors import RequestRejectedError, UtilityError
from enginecore_wire.requests import LoRARequest
from enginecore_wire.utility import UTILITY_METHODS, FanOut

R = TypeVar("R")

PauseMode = Literal["abort", "wait", "keep"]


class Op(msgspec.Struct, Generic[R], frozen=True):
    """A control operation with result R; its fields are the positional arguments.

    `newer` counts the last arguments, those that older engines do not know: they are left out
    as long as they have their default, which is the engine's too.
    """

    utility: ClassVar[str]
    newer: ClassVar[int] = 0

    def arguments(self) -> list[Any]:
        """Return the arguments as they travel.

        Raises:
            RequestRejectedError: an argument has the wrong type; `field` names it.
        """
        names = self.__struct_fields__
        values = {name: getattr(self, name) for name in names}
        try:
            msgspec.convert(values, type(self))
        except msgspec.ValidationError as error:
            field = str(error).rpartition("`$.")[2].rstrip("`")
            hint = _HINTS.get(field, "")
            raise RequestRejectedError(f"{self.utility}: {error}{hint}", field=field) from error
        count = len(names)
        while count > len(names) - self.newer and _is_default(self, count - 1):
            count -= 1
        return [values[name] for name in names[:count]]

    def result(self, replies: Sequence[Any]) -> R:
        """Return the one result of the replies of all engines asked (at least one).

        Raises:
            UtilityError: engines that must agree do not, or a reply has the wrong type.
        """
        kind = get_args(type(self).__orig_bases__[0])[0]  # type: ignore[attr-defined]
        value = combine(self.utility, replies)
        if kind is type(None):
            value = None
        try:
            converted: R = msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            raise UtilityError(f"{self.utility}: unexpected reply: {error}") from error
        return converted


def checked(op: Op[R]) -> Op[R]:
    """Return an operation as it is.

    Raises:
        RequestRejectedError: it is none, such as a name or the class alone.
    """
    if not isinstance(op, Op):
        raise RequestRejectedError(
            f"op: got {op!r}, allowed: an operation of enginecore_client.ops, such as "
            "IsSleeping(); call_utility takes a name",
            field="op",
        )
    return op


_HINTS: Final = {
    "lora_request": "; give a LoRARequest(lora_name, lora_int_id, lora_path) of "
    "enginecore_wire.requests"
}
"""What to give for arguments whose type does not say it."""


def _is_default(op: Op[Any], index: int) -> bool:
    defaults = op.__struct_defaults__
    default = defaults[index - len(op.__struct_fields__) + len(defaults)]
    return bool(getattr(op, op.__struct_fields__[index]) == default)


def combine(utility: str, replies: Sequence[Any]) -> Any:
    """Return one value for the replies of several engines, by the rule of the utility call.

    Raises:
        UtilityError: engines that must agree do not.
    """
    match UTILITY_METHODS[utility].fan_out:
        case FanOut.ALL:
            return all(replies)
        case FanOut.CONCATENATE if not all(isinstance(reply, list) for reply in replies):
            raise UtilityError(f"{utility}: unexpected reply: expected one list of each engine")
        case FanOut.CONCATENATE:
            return [item for reply in replies for item in reply]
        case FanOut.AGREE if any(reply != replies[0] for reply in replies):
            raise UtilityError(f"{utility}: engines disagree: {list(replies)}")
    return replies[0]


class GetSupportedTasks(Op[list[str]], frozen=True):
    """What the engine can do, such as `generate`."""

    utility: ClassVar[str] = "get_supported_tasks"


class IsSleeping(Op[bool], frozen=True):
    """Whether the engine sleeps (or is paused)."""

    utility: ClassVar[str] = "is_sleeping"


class Sleep(Op[None], frozen=True):
    """Free memory. Level 0 only pauses, 1 keeps the weights aside, 2 discards them."""

    utility: ClassVar[str] = "sleep"
    level: int = 1
    mode: PauseMode = "abort"


class WakeUp(Op[bool], frozen=True):
    """Undo `sleep`, wholly or for `tags` only; True once fully awake."""

    utility: ClassVar[str] = "wake_up"
    tags: list[str] | None = None


class PauseScheduler(Op[None], frozen=True):
    """Stop scheduling; running requests are aborted, waited for, or kept."""

    utility: ClassVar[str] = "pause_scheduler"
    mode: PauseMode = "abort"
    clear_cache: bool = True


class ResumeScheduler(Op[None], frozen=True):
    """Undo `pause_scheduler`."""

    utility: ClassVar[str] = "resume_scheduler"


class IsSchedulerPaused(Op[bool], frozen=True):
    """Whether scheduling is paused."""

    utility: ClassVar[str] = "is_scheduler_paused"


class ResetPrefixCache(Op[bool], frozen=True):
    """Forget cached prefixes; False while blocks are in use."""

    utility: ClassVar[str] = "reset_prefix_cache"
    newer: ClassVar[int] = 2
    reset_running_requests: bool = False
    reset_connector: bool = False


class ResetMMCache(Op[None], frozen=True):
    """Forget cached multimodal inputs."""

    utility: ClassVar[str] = "reset_mm_cache"


class ResetEncoderCache(Op[None], frozen=True):
    """Forget cached encoder outputs."""

    utility: ClassVar[str] = "reset_encoder_cache"


class Profile(Op[None], frozen=True):
    """Start or stop the engine's profiler.

    `prefix` begins the names of its files; it skips `delay_iterations` steps and covers
    `max_iterations`.
    """

    utility: ClassVar[str] = "profile"
    newer: ClassVar[int] = 3
    is_start: bool = True
    prefix: str | None = None
    delay_iterations: int | None = None
    max_iterations: int | None = None


class ListLoras(Op[set[int]], frozen=True):
    """Ids of the adapters that are loaded."""

    utility: ClassVar[str] = "list_loras"


class AddLora(Op[bool], frozen=True):
    """Load an adapter."""

    utility: ClassVar[str] = "add_lora"
    lora_request: LoRARequest


class RemoveLora(Op[bool], frozen=True):
    """Unload an adapter."""

    utility: ClassVar[str] = "remove_lora"
    lora_id: int


class PinLora(Op[bool], frozen=True):
    """Keep an adapter loaded."""

    utility: ClassVar[str] = "pin_lora"
    lora_id: int


class ReleaseKvCacheMemory(Op[None], frozen=True):
    """Free the KV cache; the engine must be paused, with nothing left to finish."""

    utility: ClassVar[str] = "release_kv_cache_memory"


class ExecuteDummyBatch(Op[None], frozen=True):
    """Compute one step without a request."""

    utility: ClassVar[str] = "execute_dummy_batch"


class SaveShardedState(Op[None], frozen=True):
    """Write the weights as they are sharded; `path` is the engine's."""

    utility: ClassVar[str] = "save_sharded_state"
    path: str
    pattern: str | None = None
    max_size: int | None = None


class CollectiveRpc(Op[list[Any]], frozen=True):
    """Call a method of every worker by name. Functions and bytes never travel: an engine could
    only unpickle them, and a pickle runs whatever it likes."""

    utility: ClassVar[str] = "collective_rpc"
    method: str
    timeout: float | None = None
    args: Sequence[Any] = ()
    kwargs: dict[str, Any] | None = None

    def arguments(self) -> list[Any]:
        """Return the arguments as they travel; see Op.

        Raises:
            RequestRejectedError: the method is not a name, or an argument has the wrong type.
        """
        if not isinstance(self.method, str):
            raise RequestRejectedError(
                f"collective_rpc: method: got {type(self.method).__name__}, allowed: the name of "
                "a worker's method; functions and bytes would have to be unpickled by the "
                "engine, and a pickle runs whatever it likes",
                field="method",
            )
        return super().arguments()


class SetWeightVersion(Op[None], frozen=True):
    """Name the weights the engine computes with."""

    utility: ClassVar[str] = "set_weight_version"
    weight_version: str


class GetWeightVersion(Op[str | None], frozen=True):
    """The version of the weights the engine computes with."""

    utility: ClassVar[str] = "get_weight_version"


class ComputeWeightChecksums(Op[list[dict[str, Any]]], frozen=True):
    """Checksums of the weights, a map of each worker of all engines."""

    utility: ClassVar[str] = "compute_weight_checksums"


class GetKvCacheGroupMetadata(Op[list[dict[str, Any]]], frozen=True):
    """What each group of the KV cache is, a map of each."""

    utility: ClassVar[str] = "get_kv_cache_group_metadata"
