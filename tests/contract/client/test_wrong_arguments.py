"""What callers get wrong is refused with the field's name, and what they fork or lose ends."""

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from enginecore_client import (
    AddressError,
    AsyncMPClient,
    ClientClosedError,
    EngineCoreRequest,
    OutputKind,
    ProtocolMismatchError,
    RequestRejectedError,
    SamplingParams,
    SyncMPClient,
    UtilityError,
)
from enginecore_client.ops import IsSleeping
from enginecore_wire.control import Limits, Timers
from support.eventually import eventually
from support.protocol_peer import ProtocolPeer

PROMPT = [7, 11, 13]
PARAMS = SamplingParams(max_tokens=5, output_kind=OutputKind.DELTA)
NAN = float("nan")
WHOLE = EngineCoreRequest("whole", PROMPT, sampling_params={"max_tokens": 1})  # type: ignore[arg-type]
CYCLE: dict[str, Any] = {}
CYCLE["again"] = CYCLE


def tokens(client: SyncMPClient) -> list[int]:
    stream = client.generate(PROMPT, PARAMS, deadline=10.0)
    return [token for output in stream for token in output.new_token_ids]


GENERATE: list[tuple[dict[str, Any], str]] = [
    ({"prompt_token_ids": None}, "prompt_token_ids"),
    ({"prompt_token_ids": 5}, "prompt_token_ids"),
    ({"prompt_token_ids": "text"}, "prompt_token_ids"),
    ({"prompt_token_ids": [2**70]}, "prompt_token_ids"),
    ({"sampling_params": {"max_tokens": 1}}, "sampling_params"),
    ({"sampling_params": SamplingParams(seed=2**70)}, "sampling_params.seed"),
    ({"sampling_params": SamplingParams(extra_args=CYCLE)}, "sampling_params.extra_args"),
    ({"sampling_params": SamplingParams(extra_args={"a": "\ud800"})}, "sampling_params.extra_args"),
    ({"sampling_params": SamplingParams(extra_args={"a": object()})}, "sampling_params.extra_args"),
    ({"request_id": 5}, "request_id"),
    ({"request_id": b"r"}, "request_id"),
    ({"request_id": "\ud800"}, "request_id"),
    ({"request_id": "r" * 5000}, "request_id"),
    ({"deadline": "soon"}, "deadline"),
    ({"deadline": NAN}, "deadline"),
    ({"deadline": -2}, "deadline"),
    ({"data_parallel_rank": -1}, "data_parallel_rank"),
    ({"data_parallel_rank": "0"}, "data_parallel_rank"),
    ({"data_parallel_rank": False}, "data_parallel_rank"),
    ({"data_parallel_rank": [0]}, "data_parallel_rank"),
    ({"deadline": True}, "deadline"),
    ({"retry": "no"}, "retry"),
    *(
        ({"sampling_params": SamplingParams(n=2, **{field: value})}, f"sampling_params.{field}")
        for field, value in (
            ("temperature", "hot"),
            ("temperature", None),
            ("seed", "x"),
            ("seed", [1]),
        )
    ),
]


def test_arguments_of_generate(peer: ProtocolPeer) -> None:
    with SyncMPClient(peer.addresses) as client:
        for arguments, field in GENERATE:
            good = {"prompt_token_ids": PROMPT, "sampling_params": PARAMS}
            with pytest.raises(RequestRejectedError) as caught:
                client.generate(**(good | arguments))
            assert caught.value.field == field, arguments
        assert tokens(client) == [7, 11, 13, 7, 11]
        assert len(peer.adds) == 1


async def test_arguments_of_generate_on_a_loop(peer: ProtocolPeer) -> None:
    async with AsyncMPClient(peer.addresses) as client:
        for arguments, field in GENERATE:
            good = {"prompt_token_ids": PROMPT, "sampling_params": PARAMS}
            with pytest.raises(RequestRejectedError) as caught:
                await anext(client.generate(**(good | arguments)))
            assert caught.value.field == field, arguments
        assert peer.adds == []


CALLS: list[tuple[Callable[[SyncMPClient], Any], str]] = [
    (lambda client: client.add_request(None), "request"),  # type: ignore[arg-type]
    (lambda client: client.add_request(EngineCoreRequest(5, PROMPT)), "request_id"),  # type: ignore[arg-type]
    (lambda client: client.call_utility([]), "method"),  # type: ignore[arg-type]
    (lambda client: client.call_utility("sleep", CYCLE), "args"),
    (lambda client: client.call_utility("sleep", "\ud800"), "args"),
    (lambda client: client.call_utility("is_sleeping", timeout="x"), "timeout"),  # type: ignore[arg-type]
    (lambda client: client.call_utility("is_sleeping", timeout=-1), "timeout"),
    (lambda client: client.get_output(timeout=-1), "timeout"),
    (lambda client: client.get_output(timeout=True), "timeout"),
    (lambda client: client.call("is_sleeping"), "op"),  # type: ignore[arg-type]
    (lambda client: client.call(IsSleeping), "op"),  # type: ignore[arg-type]
    (lambda client: client.generate(WHOLE), "sampling_params"),
]


@pytest.mark.parametrize("seconds", [float("inf"), 1e300, 10**400], ids=["inf", "float", "int"])
def test_a_time_span_as_long_as_you_like(peer: ProtocolPeer, seconds: float) -> None:
    with SyncMPClient(peer.addresses, ready_timeout=seconds) as client:
        assert client.call_utility("is_sleeping", timeout=seconds) is None
        assert [*client.generate(PROMPT, PARAMS, deadline=seconds)][-1].finish_reason is not None
        later = threading.Timer(
            0.1, client.add_request, [EngineCoreRequest("q", PROMPT, sampling_params=PARAMS)]
        )
        later.start()
        assert client.get_output(timeout=seconds).outputs[0].request_id == "q"
        later.join()


def test_arguments_of_other_calls(peer: ProtocolPeer) -> None:
    with SyncMPClient(peer.addresses) as client:
        for call, field in CALLS:
            with pytest.raises(RequestRejectedError) as caught:
                call(client)
            assert caught.value.field == field
        with pytest.raises(UtilityError, match="collective_rpc: unexpected reply"):
            client.collective_rpc("f")  # the peer answers nil
        assert tokens(client) == [7, 11, 13, 7, 11]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"vocab_size": 2**63}, "vocab_size"),
        ({"vocab_size": -1}, "vocab_size"),
        ({"rank": -1}, "rank"),
        ({"rank": 2**40}, "rank"),
        ({"engine": {"max_model_len": "long"}}, "engine.max_model_len 'long'"),
        ({"engine": {"max_model_len": -1}}, "engine.max_model_len"),
        ({"limits": Limits(in_flight=0)}, "limits.in_flight"),
        ({"limits": Limits(frame_bytes=0)}, "limits.frame_bytes"),
        ({"limits": Limits(prompt_tokens=-1)}, "limits.prompt_tokens"),
        ({"timers": Timers(ping_seconds=0.0)}, "timers.ping_seconds"),
        ({"timers": Timers(lost_after_seconds=NAN)}, "timers.lost_after_seconds nan"),
    ],
)
def test_a_pod_that_says_the_impossible_is_refused(
    peer: ProtocolPeer, change: dict[str, Any], words: str
) -> None:
    assert peer.ready is not None
    peer.ready = msgspec.structs.replace(peer.ready, **change)
    with pytest.raises(ProtocolMismatchError, match=f"READY cannot be used: {words}"):
        SyncMPClient(peer.addresses, ready_timeout=20)


@pytest.mark.parametrize("body", [b"\x81\xa1x" + b"\x91" * 100_000, b"\xc1"], ids=["deep", "none"])
@pytest.mark.parametrize("kind", [b"\x81", b"\x83", b"\x84", b"\x88"])
def test_a_control_message_that_cannot_be_read_harms_nothing(
    peer: ProtocolPeer, kind: bytes, body: bytes
) -> None:
    with SyncMPClient(peer.addresses) as client:
        with peer.lock:
            peer._send(peer.session(), [kind, body])
        assert tokens(client) == [7, 11, 13, 7, 11]
        assert client._driver.core.unreadable == 1


@pytest.mark.parametrize("address", ["ipc://" + "x" * 200, "tcp://" + "a" * 70 + ":5"])
def test_a_coordinator_that_cannot_be_reached_harms_nothing(
    peer: ProtocolPeer, address: str
) -> None:
    with SyncMPClient(peer.addresses | {"stats_update_address": address}) as client:
        assert tokens(client) == [7, 11, 13, 7, 11]


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b'{"x":' + b"[" * 100_000,
        b'{"input_address": "tcp://h:' + b"9" * 5000 + b'", "output_address": "tcp://h:1"}',
        b'{"input_address": "tcp://a\\u0000b:1", "output_address": "tcp://h:1"}',
        None,
    ],
    ids=["half", "deep", "long port", "nul", "gone"],
)
def test_a_file_that_breaks_and_heals_changes_nothing(
    peer: ProtocolPeer, tmp_path: Path, content: bytes | None
) -> None:
    file = tmp_path / "addresses.json"
    good = msgspec.json.encode(peer.addresses)
    file.write_bytes(good)
    with SyncMPClient(file) as client:
        if content is None:
            file.unlink()
        else:
            file.write_bytes(content)
        eventually(lambda: client._driver.source.problem)  # type: ignore[attr-defined]
        assert tokens(client) == [7, 11, 13, 7, 11]
        file.write_bytes(good)
        eventually(lambda: not client._driver.source.problem)  # type: ignore[attr-defined]
        assert tokens(client) == [7, 11, 13, 7, 11]


@pytest.mark.parametrize("addresses", [{1: 2, "x": 3}, "\0", {"input_address": "tcp://h:\u00b2"}])
def test_addresses_of_the_wrong_kind_are_refused(addresses: Any) -> None:
    with pytest.raises(AddressError):
        SyncMPClient(addresses)


FORKED: list[Callable[[SyncMPClient], Any]] = [
    lambda client: client.generate(PROMPT, PARAMS),
    lambda client: client.get_output(),
    lambda client: client.call_utility("is_sleeping"),
    lambda client: client.abort_requests(["r"]),
]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_cannot_use_the_client_and_does_not_hang(peer: ProtocolPeer) -> None:
    with SyncMPClient(peer.addresses) as client:
        for use in FORKED:
            child = os.fork()
            if child == 0:
                refused = False
                with suppress(BaseException):
                    try:
                        use(client)
                    except ClientClosedError as error:
                        refused = "this is a fork" in error.message
                    client.close()
                os._exit(0 if refused else 1)
            assert _exit_code(child) == 0
        assert tokens(client) == [7, 11, 13, 7, 11]


def _exit_code(child: int) -> int:
    def ended() -> tuple[int, int] | None:
        found = os.waitpid(child, os.WNOHANG)
        return found if found[0] else None

    try:
        found = eventually(ended, "the fork ends")
        assert found is not None
    except AssertionError:
        os.kill(child, 9)
        os.waitpid(child, 0)
        raise
    return os.waitstatus_to_exitcode(found[1])


async def test_closing_ends_every_reader(peer: ProtocolPeer) -> None:
    peer.streaming = False
    client = AsyncMPClient(peer.addresses)
    await client.connect()
    streams = [client.generate(PROMPT, PARAMS) for _ in range(5)]
    waiting = [asyncio.create_task(anext(stream)) for stream in streams]  # type: ignore[arg-type]
    waiting += [asyncio.create_task(client.get_output_async()) for _ in range(3)]  # type: ignore[arg-type]
    await asyncio.sleep(0)
    await client.aclose()
    ended = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 5.0)
    assert {type(error) for error in ended} == {ClientClosedError}
