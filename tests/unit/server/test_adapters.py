"""Which adapters a request may name, by what the engine has loaded."""

from typing import Any

import msgspec
import pytest

from enginecore_server.adapters import AdapterBook
from enginecore_server.admission import Add, Admission
from enginecore_server.heads import UtilityHead
from enginecore_wire.control import Limits, Phase
from enginecore_wire.problems import RequestLimits
from enginecore_wire.requests import LoRARequest
from support.raw_client import request

ADAPTER = LoRARequest("a", 7, "/adapters/a")
WIRE = ["a", 7, "/adapters/a", None, False, False]


def called(book: AdapterBook, method: str, *args: Any, failed: bool = False, slot: int = 3) -> None:
    book.asked(slot, 1, method, args)
    book.answered(slot, UtilityHead(1, "it failed" if failed else None, [None, True]))


def test_an_adapter_is_known_once_the_engine_has_loaded_it() -> None:
    book = AdapterBook()
    assert book.check(None) is None
    book.asked(3, 1, "add_lora", [WIRE])
    assert book.check(ADAPTER) is not None
    book.answered(3, UtilityHead(2))
    book.answered(4, UtilityHead(1))
    assert book.check(ADAPTER) is not None, "those were other calls"
    book.answered(3, UtilityHead(1))
    assert book.check(ADAPTER) is None
    called(book, "remove_lora", 7)
    assert book.check(ADAPTER) is not None


@pytest.mark.parametrize("argument", [5, None, [], ["a"], ["a", "7", "/a"], {"a": 1}, "a"])
@pytest.mark.parametrize("method", ["add_lora", "remove_lora", "pin_lora"])
def test_odd_arguments_load_nothing(method: str, argument: Any) -> None:
    book = AdapterBook()
    called(book, "add_lora", WIRE)
    called(book, method, argument)
    called(book, method)
    assert book.check(ADAPTER) is None
    assert book.check(LoRARequest("b", 5, "/adapters/b")) is not None


def test_a_call_that_failed_loads_and_removes_nothing() -> None:
    book = AdapterBook()
    called(book, "add_lora", WIRE, failed=True)
    assert book.check(ADAPTER) is not None
    called(book, "add_lora", WIRE)
    called(book, "remove_lora", 7, failed=True)
    assert book.check(ADAPTER) is None


def test_an_adapter_is_gone_for_what_comes_after_the_call_that_removes_it() -> None:
    book = AdapterBook()
    called(book, "add_lora", WIRE)
    book.asked(3, 2, "remove_lora", [7])
    assert book.check(ADAPTER) is not None, "the engine handles the removal first"
    book.answered(3, UtilityHead(2, "it failed"))
    assert book.check(ADAPTER) is None, "it is still there"


@pytest.mark.parametrize("failures", [(True, False), (False, True)])
def test_of_two_removals_one_is_enough(failures: tuple[bool, bool]) -> None:
    book = AdapterBook()
    called(book, "add_lora", WIRE)
    for slot in (3, 4):
        book.asked(slot, 2, "remove_lora", [7])
    for slot, failed in zip((3, 4), failures, strict=True):
        book.answered(slot, UtilityHead(2, "it failed" if failed else None))
        assert book.check(ADAPTER) is not None


@pytest.mark.parametrize("failed", [False, True])
def test_an_adapter_is_not_there_while_a_removal_is_on_its_way(failed: bool) -> None:
    book = AdapterBook()
    book.asked(3, 1, "add_lora", [WIRE])
    book.asked(4, 1, "remove_lora", [7])
    book.answered(3, UtilityHead(1))
    assert book.check(ADAPTER) is not None
    book.answered(4, UtilityHead(1, "it failed" if failed else None))
    assert (book.check(ADAPTER) is None) is failed


def test_a_number_keeps_the_path_it_was_loaded_from() -> None:
    book = AdapterBook()
    called(book, "add_lora", WIRE)
    called(book, "add_lora", ["b", 7, "/nowhere"])
    assert book.check(ADAPTER) is None
    problem = book.check(LoRARequest("b", 7, "/nowhere"))
    assert problem is not None
    assert problem.message == (
        "lora_request: got adapter 7 of '/nowhere', allowed: an adapter that add_lora has loaded; "
        "call add_lora and wait for its result"
    )


def test_requests_are_held_to_it() -> None:
    book = AdapterBook()
    model = RequestLimits(vocab_size=100, max_model_len=32, supports_lora=True)
    checks = Admission(model, Limits(), frozenset().__contains__, book)
    body = msgspec.msgpack.encode(request("r", lora_request=ADAPTER))
    refused = checks.add(body, [], 3, 0, 0, Phase.READY)
    assert (refused.field, refused.code) == ("lora_request", "invalid_request")  # type: ignore[union-attr]
    called(book, "add_lora", WIRE)
    assert isinstance(checks.add(body, [], 3, 0, 0, Phase.READY), Add)
