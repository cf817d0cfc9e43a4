"""Control operations as values: arguments, results, and one result of many."""

import inspect
from typing import Any, get_args

import pytest

from enginecore_client import AsyncMPClient, RequestRejectedError, SyncMPClient, UtilityError, ops
from enginecore_client.ops import combine
from enginecore_wire.requests import LoRARequest
from enginecore_wire.utility import UTILITY_METHODS

OPERATIONS = [
    value
    for value in vars(ops).values()
    if inspect.isclass(value) and issubclass(value, ops.Op) and value is not ops.Op
]
LORA = LoRARequest("l", 1, "/l")

ARGUMENTS = [
    (ops.GetSupportedTasks(), []),
    (ops.Sleep(), [1, "abort"]),
    (ops.Sleep(2, mode="wait"), [2, "wait"]),
    (ops.WakeUp(["weights"]), [["weights"]]),
    (ops.PauseScheduler("keep"), ["keep", True]),
    (ops.ResetPrefixCache(), []),
    (ops.ResetPrefixCache(True), [True]),
    (ops.ResetPrefixCache(False, True), [False, True]),
    (ops.Profile(), [True]),
    (ops.Profile(False), [False]),
    (ops.Profile(True, "p"), [True, "p"]),
    (ops.Profile(max_iterations=3), [True, None, None, 3]),
    (ops.AddLora(LORA), [LORA]),
    (ops.PinLora(3), [3]),
    (ops.SaveShardedState("/x"), ["/x", None, None]),
    (ops.CollectiveRpc("f"), ["f", None, (), None]),
    (ops.CollectiveRpc("f", 1.5, (1,), {"a": 2}), ["f", 1.5, (1,), {"a": 2}]),
    (ops.SetWeightVersion("2"), ["2"]),
]


@pytest.mark.parametrize(("op", "expected"), ARGUMENTS)
def test_arguments(op: ops.Op[Any], expected: list[Any]) -> None:
    assert op.arguments() == expected


WRONG = [
    (ops.Sleep("deep"), "level"),
    (ops.Sleep(mode="now"), "mode"),
    (ops.PinLora("x"), "lora_id"),
    (ops.CollectiveRpc(b"pickled"), "method"),
    (ops.CollectiveRpc(print), "method"),
    (ops.CollectiveRpc("f", args="text"), "args"),
    (ops.WakeUp("weights"), "tags"),
    (ops.AddLora("name"), "lora_request"),
]


@pytest.mark.parametrize(("op", "field"), WRONG, ids=[field for _, field in WRONG])
def test_wrong_arguments(op: ops.Op[Any], field: str) -> None:
    with pytest.raises(RequestRejectedError) as caught:
        op.arguments()
    assert caught.value.field == field


def test_an_adapter_is_more_than_its_name() -> None:
    with pytest.raises(RequestRejectedError, match="give a LoRARequest"):
        ops.AddLora("name").arguments()


RESULTS = [
    (ops.GetSupportedTasks(), [["generate"], ["other"]], ["generate"]),
    (ops.ListLoras(), [[1, 2]], {1, 2}),
    (ops.IsSleeping(), [True, True], True),
    (ops.GetWeightVersion(), [None, None], None),
    (ops.Sleep(), [None, None], None),
    (ops.Sleep(), [{"whatever": 1}], None),
    (ops.ResetPrefixCache(), [True, True], True),
    (ops.ResetPrefixCache(), [True, False], False),
    (ops.WakeUp(), [True, False], False),
    (ops.CollectiveRpc("f"), [[1], [2, 3]], [1, 2, 3]),
    (ops.ComputeWeightChecksums(), [[{"a": 1}], [{"b": 2}]], [{"a": 1}, {"b": 2}]),
]


@pytest.mark.parametrize(("op", "replies", "expected"), RESULTS)
def test_results(op: ops.Op[Any], replies: list[Any], expected: Any) -> None:
    assert op.result(replies) == expected


@pytest.mark.parametrize(
    ("op", "replies", "text"),
    [
        (ops.IsSleeping(), [True, False], r"engines disagree: \[True, False\]"),
        (ops.GetWeightVersion(), ["1", "2"], "engines disagree"),
        (ops.IsSleeping(), ["yes"], "is_sleeping: unexpected reply"),
        (ops.GetSupportedTasks(), [None], "get_supported_tasks: unexpected reply"),
    ],
)
def test_results_that_are_none(op: ops.Op[Any], replies: list[Any], text: str) -> None:
    with pytest.raises(UtilityError, match=text):
        op.result(replies)


def test_every_listed_method_is_declared_once_and_on_both_clients() -> None:
    declared = [op.utility for op in OPERATIONS]
    assert sorted(declared) == sorted(set(declared))
    assert set(declared) == set(UTILITY_METHODS)
    for method in declared:
        assert inspect.getattr_static(SyncMPClient, method)
        assert inspect.getattr_static(AsyncMPClient, f"{method}_async")


@pytest.mark.parametrize("op", OPERATIONS, ids=lambda op: op.__name__)
def test_every_operation_says_what_it_returns(op: type[ops.Op[Any]]) -> None:
    assert get_args(op.__orig_bases__[0])
    assert op.__doc__


def test_combine_by_name() -> None:
    assert combine("list_loras", [[1], [2]]) == [1]
