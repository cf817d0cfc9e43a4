"""EngineCoreClient: every name of vLLM's, in both forms, with vLLM's arguments in vLLM's order."""

import asyncio
import inspect
from typing import Any

import pytest

from enginecore_client import (
    AsyncMPClient,
    DPAsyncMPClient,
    DPLBAsyncMPClient,
    EngineCoreClient,
    EngineCoreRequest,
    InprocClient,
    MPClient,
    RequestRejectedError,
    ScalingNotAvailable,
    SyncMPClient,
    ops,
)
from enginecore_client.testing import FakeEngineCore

BLOCKING = [InprocClient, SyncMPClient]
AWAITED = [AsyncMPClient, DPAsyncMPClient, DPLBAsyncMPClient]

BOTH_FORMS = (
    "get_output", "get_supported_tasks", "add_request", "abort_requests", "profile",
    "reset_mm_cache", "reset_prefix_cache", "reset_encoder_cache", "sleep", "wake_up",
    "is_sleeping", "pause_scheduler", "resume_scheduler", "is_scheduler_paused",
    "execute_dummy_batch", "add_lora", "remove_lora", "list_loras", "pin_lora",
    "save_sharded_state", "collective_rpc", "set_weight_version", "get_weight_version",
)  # fmt: skip
ONE_FORM = ("shutdown", "dp_engines_running", "scale_elastic_ep")


@pytest.mark.parametrize("kind", [EngineCoreClient, MPClient, *BLOCKING, *AWAITED])
def test_every_client_has_every_name(kind: type[EngineCoreClient]) -> None:
    assert issubclass(kind, EngineCoreClient)
    names = {*ONE_FORM, *BOTH_FORMS, *(f"{name}_async" for name in BOTH_FORMS)}
    assert [name for name in sorted(names) if not hasattr(kind, name)] == []


def test_the_family() -> None:
    assert issubclass(SyncMPClient, MPClient)
    assert issubclass(AsyncMPClient, MPClient)
    assert issubclass(DPAsyncMPClient, AsyncMPClient)
    assert issubclass(DPLBAsyncMPClient, DPAsyncMPClient)
    assert not issubclass(InprocClient, MPClient)
    with pytest.raises(TypeError, match="abstract"):
        EngineCoreClient()  # type: ignore[abstract]


SIGNATURES = [
    (ops.Profile, ["is_start", "prefix"]),
    (ops.ResetPrefixCache, ["reset_running_requests", "reset_connector"]),
    (ops.Sleep, ["level", "mode"]),
    (ops.WakeUp, ["tags"]),
    (ops.PauseScheduler, ["mode", "clear_cache"]),
    (ops.AddLora, ["lora_request"]),
    (ops.RemoveLora, ["lora_id"]),
    (ops.PinLora, ["lora_id"]),
    (ops.SaveShardedState, ["path", "pattern", "max_size"]),
    (ops.CollectiveRpc, ["method", "timeout", "args", "kwargs"]),
    (ops.SetWeightVersion, ["weight_version"]),
]


@pytest.mark.parametrize(("op", "names"), SIGNATURES, ids=[op.__name__ for op, _ in SIGNATURES])
def test_arguments_have_the_places_that_callers_of_vllm_give_them(
    op: type[ops.Op[Any]], names: list[str]
) -> None:
    assert list(inspect.signature(op).parameters)[: len(names)] == names
    assert list(op.__struct_fields__)[: len(names)] == names


@pytest.mark.parametrize("kind", [*BLOCKING, *AWAITED])
def test_requests_and_shutdown_take_what_callers_of_vllm_give(kind: type[Any]) -> None:
    suffix = "_async" if kind in AWAITED else ""
    for name, first in (("add_request", "request"), ("abort_requests", "request_ids")):
        assert list(inspect.signature(getattr(kind, name + suffix)).parameters)[1] == first
    timeout = inspect.signature(kind.shutdown).parameters["timeout"]
    assert timeout.default is None
    assert not inspect.iscoroutinefunction(kind.shutdown)


def test_a_client_that_blocks_says_so_when_it_is_awaited() -> None:
    with InprocClient(FakeEngineCore()) as client:
        for awaited in (
            client.get_output_async(),
            client.add_request_async(EngineCoreRequest("a", [1])),
            client.abort_requests_async([]),
            client.sleep_async(),
        ):
            with pytest.raises(NotImplementedError, match="InprocClient blocks: use "):
                asyncio.run(awaited)


def test_a_client_that_is_awaited_says_so_when_it_is_to_block() -> None:
    client = AsyncMPClient({"input_address": "tcp://[::1]:9", "output_address": "tcp://[::1]:10"})
    try:
        for name, arguments in (
            ("get_output", ()),
            ("add_request", (EngineCoreRequest("a", [1]),)),
            ("abort_requests", ([],)),
            ("is_sleeping", ()),
        ):
            with pytest.raises(NotImplementedError, match=f"is awaited: use {name}_async"):
                getattr(client, name)(*arguments)
        with pytest.raises(ScalingNotAvailable, match="cannot scale to 3 engines"):
            client.scale_elastic_ep(3)
    finally:
        client.close()


@pytest.mark.parametrize("timeout", ["soon", -1.0, float("nan")])
def test_shutdown_wants_a_time(timeout: Any) -> None:
    with InprocClient(FakeEngineCore()) as client:
        with pytest.raises(RequestRejectedError) as caught:
            client.shutdown(timeout)
        assert caught.value.field == "timeout"
        client.shutdown(1.0)
        client.shutdown()
