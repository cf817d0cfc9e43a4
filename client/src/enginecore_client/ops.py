"""Control operations: each declared once, with its arguments, result and method name.

An operation is a value. `client.call(Sleep(level=1))` and `client.sleep(level=1)` are the same;
mypy knows the result of both. How the replies of several engines become one is part of
the wire (enginecore_wire.utility).
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Generic, Literal, TypeVar, get_args

import msgspec

from enginecore_client.errors import RequestRejectedError, UtilityError
from enginecore_wire.requests import LoRARequest
from enginecore_wire.utility import UTILITY_METHODS, FanOut

R = TypeVar("R")

PauseMode = Literal["abort", "wait", "keep"]


class Op(msgspec.Struct, Generic[R], frozen=True):
    """A control operation with result R; its fields are the positional arguments."""

    method: ClassVar[str]

    def args(self) -> list[Any]:
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
            raise RequestRejectedError(f"{self.method}: {error}", field=field) from error
        return [values[name] for name in names]

    def result(self, replies: Sequence[Any]) -> R:
        """Return the one result of the replies of all engines asked (at least one).

        Raises:
            UtilityError: engines that must agree do not, or a reply has the wrong type.
        """
        kind = get_args(type(self).__orig_bases__[0])[0]  # type: ignore[attr-defined]
        value = combine(self.method, replies)
        if kind is type(None):
            value = None
        try:
            converted: R = msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            raise UtilityError(f"{self.method}: unexpected reply: {error}") from error
        return converted


def combine(method: str, replies: Sequence[Any]) -> Any:
    """Return one value for the replies of several engines, by the method's rule.

    Raises:
        UtilityError: engines that must agree do not.
    """
    match UTILITY_METHODS[method].fan_out:
        case FanOut.ALL:
            return all(replies)
        case FanOut.CONCATENATE if not all(isinstance(reply, list) for reply in replies):
            raise UtilityError(f"{method}: unexpected reply: expected one list of each engine")
        case FanOut.CONCATENATE:
            return [item for reply in replies for item in reply]
        case FanOut.AGREE if any(reply != replies[0] for reply in replies):
            raise UtilityError(f"{method}: engines disagree: {list(replies)}")
    return replies[0]


class GetSupportedTasks(Op[list[str]], frozen=True):
    """What the engine can do, such as `generate`."""

    method: ClassVar[str] = "get_supported_tasks"


class IsSleeping(Op[bool], frozen=True):
    """Whether the engine sleeps (or is paused)."""

    method: ClassVar[str] = "is_sleeping"


class Sleep(Op[None], frozen=True):
    """Free memory. Level 0 only pauses, 1 keeps the weights aside, 2 discards them."""

    method: ClassVar[str] = "sleep"
    level: int = 1
    mode: PauseMode = "abort"


class WakeUp(Op[bool], frozen=True):
    """Undo `sleep`, wholly or for `tags` only; True once fully awake."""

    method: ClassVar[str] = "wake_up"
    tags: list[str] | None = None


class PauseScheduler(Op[None], frozen=True):
    """Stop scheduling; running requests are aborted, waited for, or kept."""

    method: ClassVar[str] = "pause_scheduler"
    mode: PauseMode = "abort"
    clear_cache: bool = True


class ResumeScheduler(Op[None], frozen=True):
    """Undo `pause_scheduler`."""

    method: ClassVar[str] = "resume_scheduler"


class IsSchedulerPaused(Op[bool], frozen=True):
    """Whether scheduling is paused."""

    method: ClassVar[str] = "is_scheduler_paused"


class ResetPrefixCache(Op[bool], frozen=True):
    """Forget cached prefixes; False while blocks are in use."""

    method: ClassVar[str] = "reset_prefix_cache"
    reset_running_requests: bool = False
    reset_connector: bool = False


class ResetMMCache(Op[None], frozen=True):
    """Forget cached multimodal inputs."""

    method: ClassVar[str] = "reset_mm_cache"


class ResetEncoderCache(Op[None], frozen=True):
    """Forget cached encoder outputs."""

    method: ClassVar[str] = "reset_encoder_cache"


class Profile(Op[None], frozen=True):
    """Start or stop the engine's profiler."""

    method: ClassVar[str] = "profile"
    is_start: bool = True
    prefix: str | None = None


class ListLoras(Op[set[int]], frozen=True):
    """Ids of the adapters that are loaded."""

    method: ClassVar[str] = "list_loras"


class AddLora(Op[bool], frozen=True):
    """Load an adapter."""

    method: ClassVar[str] = "add_lora"
    lora_request: LoRARequest


class RemoveLora(Op[bool], frozen=True):
    """Unload an adapter."""

    method: ClassVar[str] = "remove_lora"
    lora_id: int


class PinLora(Op[bool], frozen=True):
    """Keep an adapter loaded."""

    method: ClassVar[str] = "pin_lora"
    lora_id: int


class ExecuteDummyBatch(Op[None], frozen=True):
    """Compute one step without a request."""

    method: ClassVar[str] = "execute_dummy_batch"


class SaveShardedState(Op[None], frozen=True):
    """Write the weights as they are sharded; `path` is the engine's."""

    method: ClassVar[str] = "save_sharded_state"
    path: str
    pattern: str | None = None
    max_size: int | None = None


class CollectiveRpc(Op[list[Any]], frozen=True):
    """Call a method of every worker by name; callables and bytes never travel."""

    method: ClassVar[str] = "collective_rpc"
    name: str
    timeout: float | None = None
    positional: list[Any] = []
    keywords: dict[str, Any] | None = None


class GetWeightVersion(Op[str | None], frozen=True):
    """The version of the weights the engine computes with."""

    method: ClassVar[str] = "get_weight_version"
