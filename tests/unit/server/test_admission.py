"""Which messages may reach the engine, and with which body."""

from typing import Any

import msgspec
import pytest

from enginecore_server.adapters import AdapterBook
from enginecore_server.admission import Add, Admission, Call, closed
from enginecore_wire.control import Limits, Phase, Reject
from enginecore_wire.dialects import dialect_of
from enginecore_wire.problems import RequestLimits
from enginecore_wire.requests import EngineCoreRequest, SamplingParams
from enginecore_wire.translation import request_encoder
from enginecore_wire.utility import UTILITY_METHODS, Role

SLOT = 3
encode = msgspec.msgpack.encode


def admission(in_use: frozenset[str] = frozenset(), **limits: int) -> Admission:
    model = RequestLimits(vocab_size=100, max_model_len=32)
    chosen = Limits(**({"frame_bytes": 4096} | limits))
    return Admission(model, chosen, in_use.__contains__, AdapterBook())


def add(
    checks: Admission,
    body: bytes,
    unfinished: int = 0,
    phase: Phase = Phase.READY,
    total: int = 0,
) -> Any:
    return checks.add(body, [], SLOT, unfinished, total, phase)


def call(checks: Admission, body: bytes, role: Role = Role.ADMIN, calls: Any = frozenset()) -> Any:
    return checks.utility(body, [], SLOT, set(calls), role)


def request(**fields: Any) -> EngineCoreRequest:
    values: dict[str, Any] = {
        "request_id": "r",
        "prompt_token_ids": [1, 2],
        "sampling_params": SamplingParams(max_tokens=4),
        "client_index": SLOT,
    }
    return EngineCoreRequest(**(values | fields))


def test_a_good_request_goes_on_as_it_is() -> None:
    assert add(admission(), encode(request())) == Add("r", 2, None)


@pytest.mark.parametrize("claimed", [0, 1, 64, 10**9])
def test_a_foreign_slot_is_overwritten(claimed: int) -> None:
    verdict = add(admission(), encode(request(client_index=claimed)))
    assert verdict == Add("r", 2, encode(request()))


def test_the_shortest_request_gets_its_slot() -> None:
    items = msgspec.to_builtins(request())[:9]
    verdict = add(admission(), encode(items))
    decoded = msgspec.msgpack.decode(verdict.body, type=EngineCoreRequest)
    assert (decoded.client_index, decoded.prompt_embeds) == (SLOT, None)


@pytest.mark.parametrize(("version", "place"), [("0.16.0", 11), ("0.20.2", 10), ("0.24.0", 11)])
@pytest.mark.parametrize("length", [None, 0])
def test_requests_to_older_engines_are_read_at_their_own_positions(
    version: str, place: int, length: int | None
) -> None:
    dialect = dialect_of(version)
    model = RequestLimits(vocab_size=100, max_model_len=32)
    checks = Admission(model, Limits(), frozenset().__contains__, AdapterBook(), dialect)
    items = msgspec.msgpack.decode(
        request_encoder(dialect).encode(request(client_index=0, priority=7))[0]
    )
    if length is not None:  # the shortest that such an engine takes
        items = items[: dialect.request.index("prompt_embeds")]
    verdict = add(checks, encode(items))
    patched = msgspec.msgpack.decode(verdict.body)
    assert (patched[place], patched[: len(items[:place])]) == (SLOT, items[:place])
    assert len(patched) == max(len(items), place + 1)
    items[dialect.request.index("cache_salt")] = [5]
    refused = add(checks, encode(items))
    assert (refused.code, refused.field) == ("invalid_request", "cache_salt")


def test_items_of_newer_layouts_survive_the_overwrite() -> None:
    items = [*msgspec.to_builtins(request(client_index=0)), "newer", {"than": "us"}]
    verdict = add(admission(), encode(items))
    assert msgspec.msgpack.decode(verdict.body)[-2:] == ["newer", {"than": "us"}]


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        (b"", "invalid_request", ""),
        (b"\xc1", "invalid_request", ""),
        (b"\x80", "invalid_request", ""),
        (encode(["r"]), "invalid_request", ""),
        (encode(request(prompt_token_ids=[100])), "invalid_request", "prompt_token_ids[0]"),
        (encode(request(prompt_token_ids=[1, -1])), "invalid_request", "prompt_token_ids[1]"),
        (encode(request(prompt_token_ids=list(range(40)))), "too_large", "prompt_token_ids"),
        (encode(request(prompt_token_ids=[])), "invalid_request", "prompt_token_ids"),
        (encode(request(client_index="one")), "invalid_request", "client_index"),
        (encode(request(sampling_params=None)), "invalid_request", "sampling_params"),
        (
            encode(request(sampling_params=SamplingParams(temperature=5.0))),
            "invalid_request",
            "sampling_params.temperature",
        ),
        (encode(request(request_id="")), "invalid_request", "request_id"),
        (encode(request(request_id=7)), "invalid_request", "request_id"),
        (encode(request(trace_headers={"a": "x" * 5000})), "too_large", ""),
        (b"\x91" * 4000 + b"\xc0", "invalid_request", ""),
    ],
)
def test_bad_requests_are_refused(body: bytes, code: str, field: str) -> None:
    verdict = add(admission(), body)
    assert isinstance(verdict, Reject)
    assert (verdict.code, verdict.field) == (code, field)
    assert verdict.message


def test_a_refusal_names_the_request_if_it_can() -> None:
    assert add(admission(), encode(request(prompt_token_ids=[100]))).request_id == "r"
    assert add(admission(), encode(["r", "nonsense"])).request_id == "r"
    assert add(admission(), b"\xc1").request_id is None


@pytest.mark.parametrize(
    ("unfinished", "total", "phase", "code", "why"),
    [
        (8, 8, Phase.READY, "overloaded", "limit per client"),
        (9, 30, Phase.READY, "overloaded", "limit per client"),
        (7, 20, Phase.READY, "overloaded", "20 requests are unfinished"),
        (0, 21, Phase.READY, "overloaded", "limit for all clients"),
        (0, 0, Phase.DRAINING, "draining", "no new requests"),
    ],
)
def test_load_and_drain_refuse_good_requests(
    unfinished: int, total: int, phase: Phase, code: str, why: str
) -> None:
    checks = admission(in_flight=8, in_flight_total=20)
    verdict = add(checks, encode(request()), unfinished, phase, total)
    assert (verdict.code, verdict.request_id) == (code, "r")
    assert why in verdict.message


def test_what_is_just_below_the_limits_is_taken() -> None:
    checks = admission(in_flight=8, in_flight_total=20)
    assert isinstance(add(checks, encode(request()), 7, total=19), Add)


def test_an_id_in_use_is_refused() -> None:
    verdict = add(admission(frozenset({"r"})), encode(request()))
    assert (verdict.code, verdict.request_id) == ("duplicate_request_id", "r")


def test_too_many_frames_are_refused() -> None:
    verdict = admission().add(encode(request()), [b""] * 1025, SLOT, 0, 0, Phase.READY)
    assert isinstance(verdict, Reject)
    assert verdict.code == "too_large"


def test_a_listed_call_goes_on_with_its_slot() -> None:
    assert call(admission(), encode([SLOT, 7, "is_sleeping", []])) == Call(
        7, "is_sleeping", [], None
    )
    verdict = call(admission(), encode([0, 7, "is_sleeping", []]))
    assert verdict.body == encode([SLOT, 7, "is_sleeping", []])


@pytest.mark.parametrize(
    ("items", "role", "code", "call_id"),
    [
        ([SLOT, 7, "shutdown", []], Role.ADMIN, "unknown_method", 7),
        ([SLOT, 7, "__class__", []], Role.ADMIN, "unknown_method", 7),
        ([SLOT, 7, "sleep", [1]], Role.INFER, "not_permitted", 7),
        ([SLOT, 7, "collective_rpc", [b"\x80\x04"]], Role.ADMIN, "invalid_request", 7),
        ([SLOT, 7, "collective_rpc", []], Role.ADMIN, "invalid_request", 7),
        ([SLOT, 7, "is_sleeping"], Role.ADMIN, "invalid_request", 7),
        ([SLOT, 7, "is_sleeping", {}], Role.ADMIN, "invalid_request", 7),
        ([SLOT, -1, "is_sleeping", []], Role.ADMIN, "invalid_request", None),
        ([SLOT, "7", "is_sleeping", []], Role.ADMIN, "invalid_request", None),
        ([SLOT, 5, "is_sleeping", []], Role.ADMIN, "invalid_request", 5),
        ({}, Role.ADMIN, "invalid_request", None),
    ],
)
def test_bad_calls_are_refused(items: Any, role: Role, code: str, call_id: int | None) -> None:
    verdict = call(admission(), encode(items), role, calls={5})
    assert isinstance(verdict, Reject)
    assert (verdict.code, verdict.call_id) == (code, call_id)


@pytest.mark.parametrize("method", [m.name for m in UTILITY_METHODS.values()])
def test_each_role_may_make_its_calls(method: str) -> None:
    body = encode([SLOT, 1, method, ["method"]])
    assert isinstance(call(admission(), body, Role.ADMIN), Call)
    permitted = UTILITY_METHODS[method].role is Role.INFER
    assert isinstance(call(admission(), body, Role.INFER), Call) is permitted


def test_calls_are_bounded_like_requests() -> None:
    verdict = call(admission(in_flight=2), encode([SLOT, 7, "is_sleeping", []]), calls={1, 2})
    assert (verdict.code, verdict.call_id) == ("overloaded", 7)


@pytest.mark.parametrize("body", [b"", b"\xc1", encode("r"), encode([1]), encode({"r": 1})])
def test_bad_aborts_are_refused(body: bytes) -> None:
    verdict = admission().abort(body)
    assert isinstance(verdict, Reject)
    assert verdict.code == "invalid_request"


def test_aborts_name_ids() -> None:
    assert admission().abort(encode(["a", "b"])) == ["a", "b"]


@pytest.mark.parametrize(
    ("phase", "code"),
    [
        (Phase.STARTING, "not_ready"),
        (Phase.LOADING, "not_ready"),
        (Phase.DRAINING, "draining"),
        (Phase.FAILED, "not_ready"),
    ],
)
def test_phases_that_take_nothing_say_so(phase: Phase, code: str) -> None:
    assert closed(phase, request_id="r").code == code
