"""The utility calls an engine may be asked for, each with who may ask and how replies of
several engines become one."""

from enum import StrEnum
from typing import Final, NamedTuple


class Role(StrEnum):
    """What a client's key allows: `infer` concerns its own requests, `admin` the engine."""

    INFER = "infer"
    ADMIN = "admin"


class FanOut(StrEnum):
    """How the replies of several engines become one result."""

    FIRST = "first"
    ALL = "all"
    AGREE = "agree"
    CONCATENATE = "concatenate"


class UtilityMethod(NamedTuple):
    """One utility call."""

    name: str
    role: Role
    fan_out: FanOut = FanOut.FIRST


_METHODS = (
    UtilityMethod("get_supported_tasks", Role.INFER),
    UtilityMethod("list_loras", Role.INFER),
    UtilityMethod("is_sleeping", Role.INFER, FanOut.AGREE),
    UtilityMethod("is_scheduler_paused", Role.INFER, FanOut.AGREE),
    UtilityMethod("get_weight_version", Role.INFER, FanOut.AGREE),
    UtilityMethod("get_kv_cache_group_metadata", Role.INFER),
    UtilityMethod("add_lora", Role.ADMIN, FanOut.ALL),
    UtilityMethod("remove_lora", Role.ADMIN, FanOut.ALL),
    UtilityMethod("pin_lora", Role.ADMIN, FanOut.ALL),
    UtilityMethod("profile", Role.ADMIN),
    UtilityMethod("reset_mm_cache", Role.ADMIN),
    UtilityMethod("reset_encoder_cache", Role.ADMIN),
    UtilityMethod("reset_prefix_cache", Role.ADMIN, FanOut.ALL),
    UtilityMethod("pause_scheduler", Role.ADMIN),
    UtilityMethod("resume_scheduler", Role.ADMIN),
    UtilityMethod("sleep", Role.ADMIN),
    UtilityMethod("wake_up", Role.ADMIN, FanOut.ALL),
    UtilityMethod("release_kv_cache_memory", Role.ADMIN),
    UtilityMethod("execute_dummy_batch", Role.ADMIN),
    UtilityMethod("set_weight_version", Role.ADMIN),
    UtilityMethod("compute_weight_checksums", Role.ADMIN, FanOut.CONCATENATE),
    UtilityMethod("save_sharded_state", Role.ADMIN),
    UtilityMethod("collective_rpc", Role.ADMIN, FanOut.CONCATENATE),
)

UTILITY_METHODS: Final[dict[str, UtilityMethod]] = {method.name: method for method in _METHODS}
"""Every utility call a client may make. Engines would run any attribute called by name, so
whatever is not listed here is refused before it reaches one.

`collective_rpc` runs a method of the workers: vLLM falls silent for good when the result is not
plain data (`get_kv_cache_spec` is one), so its caller answers for the method."""
