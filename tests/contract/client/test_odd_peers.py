"""What a client makes of messages that get lost, are broken, or that no pod should send."""

import asyncio
import contextlib
import os
import socket
import threading
import time

import msgspec
import pytest

from enginecore_client import (
    AsyncMPClient,
    ClientClosedError,
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    EngineDeadError,
    EngineDrainingError,
    FinishReason,
    LostOutputsError,
    OutputKind,
    OverloadedError,
    ProtocolMismatchError,
    RequestRejectedError,
    RequestTimeoutError,
    SamplingParams,
    StartupTimeoutError,
    SyncMPClient,
    UtilityError,
)
from enginecore_wire.control import (
    Draining,
    Limits,
    PhaseChange,
    Reject,
    RejectCode,
    Replaced,
    Timers,
    Unknown,
)
from support.eventually import eventually_async
from support.protocol_peer import ProtocolPeer

PROMPT = [7, 11, 13]
PARAMS = SamplingParams(max_tokens=5, output_kind=OutputKind.DELTA)


async def stream_of(client: AsyncMPClient, peer: ProtocolPeer, **options):
    """Return a stream whose request has reached the peer."""
    before = len(peer.adds)
    stream = client.generate(PROMPT, PARAMS, **options)
    await eventually_async(lambda: len(peer.adds) > before, "the request arrived")
    return stream


def token(peer: ProtocolPeer, value: int, reason: FinishReason | None = None) -> EngineCoreOutputs:
    name = peer.adds[-1].request_id
    return EngineCoreOutputs(outputs=[EngineCoreOutput(name, [value], finish_reason=reason)])


async def test_pong_finds_a_lost_output(peer: ProtocolPeer) -> None:
    peer.streaming = False
    async with AsyncMPClient(peer.addresses) as client:
        stream = await stream_of(client, peer)
        peer.outputs(token(peer, 7))
        assert (await anext(stream)).new_token_ids == [7]
        peer.lose_one()
        with pytest.raises(LostOutputsError, match="1 message of the engine is missing") as caught:
            await anext(stream)
        assert caught.value.retryable
        await eventually_async(lambda: peer.aborts == [peer.adds[-1].request_id])
        peer.streaming = True
        after = [t async for o in client.generate(PROMPT, PARAMS) for t in o.new_token_ids]
        assert after == [7, 11, 13, 7, 11]


async def test_lost_outputs_without_a_token_are_retried(peer: ProtocolPeer) -> None:
    peer.streaming = False
    async with AsyncMPClient(peer.addresses) as client:
        stream = await stream_of(client, peer, retry=True)
        peer.lose_one()
        await eventually_async(lambda: len(peer.adds) == 2, "sent again")
        assert peer.adds[0].request_id != peer.adds[1].request_id
        peer.streaming = True
        assert [t async for o in stream for t in o.new_token_ids] == [7, 11, 13, 7, 11]


async def test_unknown_brings_a_new_hello_and_ends_what_was_lost(peer: ProtocolPeer) -> None:
    peer.streaming = False
    async with AsyncMPClient(peer.addresses) as client:
        stream = await stream_of(client, peer)
        hellos = len(peer.hellos)
        with peer.lock:
            peer.session().running.clear()
            peer.control(Unknown(type=0))
        with pytest.raises(LostOutputsError, match="never received it"):
            await anext(stream)
        assert len(peer.hellos) > hellos
        assert len({hello.nonce for hello in peer.hellos}) == 1


async def test_requests_only_the_pod_knows_are_aborted(peer: ProtocolPeer) -> None:
    peer.streaming = False
    async with AsyncMPClient(peer.addresses):
        peer.session().running["stray"] = [None, 0]
        peer.control(Unknown())
        await eventually_async(lambda: set(peer.aborts) == {"stray"})


@pytest.mark.parametrize(
    "message",
    [Replaced(reason="too slow"), None],
    ids=["replaced", "other epoch"],
)
async def test_a_session_given_up_is_begun_anew(peer: ProtocolPeer, message) -> None:
    peer.streaming = False
    async with AsyncMPClient(peer.addresses) as client:
        stream = await stream_of(client, peer)
        nonce = peer.hellos[-1].nonce
        if message is not None:
            peer.control(message)
        else:
            peer.become_ready(msgspec.structs.replace(peer.ready, epoch=2))
        with pytest.raises(EngineDeadError):
            await anext(stream)
        await eventually_async(lambda: peer.hellos[-1].nonce != nonce, "a new pair")
        peer.streaming = True
        await eventually_async(lambda: client._driver.core.all_ready())
        assert len([o async for o in client.generate(PROMPT, PARAMS)]) == 5


async def test_silence_is_death(peer: ProtocolPeer) -> None:
    peer.streaming = False
    timers = Timers(ping_seconds=0.1, lost_after_seconds=0.5)
    peer.ready = msgspec.structs.replace(peer.ready, timers=timers)
    async with AsyncMPClient(peer.addresses) as client:
        stream = await stream_of(client, peer)
        pings = len(peer.pings)
        await eventually_async(lambda: len(peer.pings) > pings + 5, "pings keep it alive")
        peer.answering = False
        started = time.monotonic()
        with pytest.raises(EngineDeadError, match=r"no message came from it for \d"):
            await anext(stream)
        assert time.monotonic() - started < 5.0


async def test_a_loop_that_stood_still_blames_nobody(peer: ProtocolPeer) -> None:
    timers = Timers(ping_seconds=0.1, lost_after_seconds=0.5)
    peer.ready = msgspec.structs.replace(peer.ready, timers=timers)
    async with AsyncMPClient(peer.addresses) as client:
        pings = len(peer.pings)
        time.sleep(1.5)  # noqa: ASYNC251 - the fault under test
        await eventually_async(lambda: len(peer.pings) > pings + 1, "it runs again")
        assert len([o async for o in client.generate(PROMPT, PARAMS)]) == 5
        assert len({hello.nonce for hello in peer.hellos}) == 1


REJECTIONS = [
    (RejectCode.OVERLOADED, OverloadedError, True),
    (RejectCode.DRAINING, EngineDrainingError, True),
    (RejectCode.INVALID_REQUEST, RequestRejectedError, False),
    (RejectCode.DUPLICATE_REQUEST_ID, RequestRejectedError, False),
    ("a code of tomorrow", RequestRejectedError, False),
]


@pytest.mark.parametrize(("code", "kind", "retryable"), REJECTIONS)
async def test_rejections_are_typed(peer: ProtocolPeer, code, kind, retryable: bool) -> None:
    peer.streaming = False
    async with AsyncMPClient(peer.addresses) as client:
        stream = await stream_of(client, peer)
        reject = Reject(code=code, message="no", field="top_p", request_id=peer.adds[-1].request_id)
        peer.control(reject)
        with pytest.raises(kind, match="no") as caught:
            await anext(stream)
        assert caught.value.retryable is retryable
        if kind is RequestRejectedError:
            assert caught.value.field == "top_p"


async def test_rejection_of_a_queued_request_reaches_get_output(peer: ProtocolPeer) -> None:
    peer.streaming = False
    async with AsyncMPClient(peer.addresses) as client:
        await client.add_request_async(EngineCoreRequest("q", PROMPT, sampling_params=PARAMS))
        await eventually_async(lambda: peer.adds)
        peer.control(Reject(code="overloaded", request_id=peer.adds[0].request_id))
        with pytest.raises(OverloadedError) as caught:
            await client.get_output_async()
        assert caught.value.request_ids == ("q",)


async def test_overload_is_found_before_sending_and_retried(peer: ProtocolPeer) -> None:
    peer.streaming = False
    peer.ready = msgspec.structs.replace(peer.ready, limits=Limits(in_flight=2))
    async with AsyncMPClient(peer.addresses) as client:
        streams = [client.generate(PROMPT, PARAMS) for _ in range(2)]
        with pytest.raises(OverloadedError, match="limit of 2"):
            await anext(client.generate(PROMPT, PARAMS))
        patient = client.generate(PROMPT, PARAMS, retry=True)
        peer.streaming = True
        for stream in [*streams, patient]:
            assert len([o async for o in stream]) == 5
        assert len(peer.adds) == 3


async def test_frame_over_the_limit_is_refused(peer: ProtocolPeer) -> None:
    peer.ready = msgspec.structs.replace(peer.ready, limits=Limits(frame_bytes=100))
    async with AsyncMPClient(peer.addresses) as client:
        with pytest.raises(RequestRejectedError, match="over this engine's limit of 100"):
            await anext(client.generate([1] * 200, PARAMS))


GARBAGE = [[b"\xc1"], [b"\x81"], [b"\x81", b"\xc1"], [b"\x8f", b"\x80"], [b""], [b"x" * 16, b"y"]]


@pytest.mark.parametrize("frames", GARBAGE, ids=[repr(frames) for frames in GARBAGE])
async def test_garbage_without_requests_harms_nothing(peer: ProtocolPeer, frames) -> None:
    async with AsyncMPClient(peer.addresses) as client:
        with peer.lock:
            session = peer.session()
            peer._send(session, frames)
        assert len([o async for o in client.generate(PROMPT, PARAMS, retry=True)]) == 5


async def test_outputs_of_strangers_are_dropped(peer: ProtocolPeer) -> None:
    async with AsyncMPClient(peer.addresses) as client:
        peer.outputs(EngineCoreOutputs(outputs=[EngineCoreOutput("nobody", [1])]))
        assert len([o async for o in client.generate(PROMPT, PARAMS)]) == 5


async def test_outputs_aborted_by_the_engine_end_the_stream(peer: ProtocolPeer) -> None:
    peer.streaming = False
    async with AsyncMPClient(peer.addresses) as client:
        stream = await stream_of(client, peer)
        peer.outputs(token(peer, 7, FinishReason.ABORT))
        assert [o.finish_reason async for o in stream] == [FinishReason.ABORT]


async def test_drain_notice_stops_new_requests(peer: ProtocolPeer) -> None:
    async with AsyncMPClient(peer.addresses) as client:
        peer.control(Draining(reason="SIGTERM", deadline_seconds=60.0))
        await eventually_async(lambda: not client._driver.core._fleet.working()[0].accepting)
        with pytest.raises(EngineDrainingError):
            await anext(client.generate(PROMPT, PARAMS))
        assert await client.call_utility_async("is_sleeping") is None


async def test_call_timeouts_and_failures(peer: ProtocolPeer) -> None:
    async with AsyncMPClient(peer.addresses) as client:
        peer.results["sleep"] = ValueError("too tired")
        with pytest.raises(UtilityError, match="too tired"):
            await client.sleep_async()
        peer.results["is_sleeping"] = "perhaps"
        with pytest.raises(UtilityError, match="is_sleeping: unexpected reply"):
            await client.is_sleeping_async()
        peer.answering = False
        with pytest.raises(RequestTimeoutError, match="wake_up: no reply"):
            await client.call_utility_async("wake_up", None, timeout=0.2)
        assert not client._driver.core._fleet.working()[0].calls


class TestStartup:
    """How waiting for engines ends."""

    async def test_phases_until_ready(self, peer: ProtocolPeer) -> None:
        ready, peer.ready = peer.ready, None
        client = AsyncMPClient(peer.addresses, ready_timeout=10)
        waiting = asyncio.create_task(client.connect())
        await eventually_async(lambda: len(peer.hellos) >= 2)
        assert not waiting.done()
        peer.become_ready(ready)
        await waiting
        await client.aclose()

    @pytest.mark.parametrize(
        ("phase", "text"),
        [
            (PhaseChange("Loading", "weights 40 %", 12.0), r"phase Loading \(weights 40 %\) for 1"),
            (PhaseChange("Failed", "no GPU", 3.0), r"phase Failed \(no GPU\) for"),
        ],
    )
    async def test_fault_35478_deadline_tells_the_phase(
        self, peer: ProtocolPeer, phase, text
    ) -> None:
        peer.ready, peer.phase = None, phase
        with pytest.raises(StartupTimeoutError, match=text):
            await AsyncMPClient(peer.addresses, ready_timeout=0.5).connect()

    async def test_unanswered_hello(self, peer: ProtocolPeer) -> None:
        peer.answering = False
        with pytest.raises(StartupTimeoutError, match="HELLO was not answered"):
            await AsyncMPClient(peer.addresses, ready_timeout=0.5).connect()

    @pytest.mark.parametrize("change", [{"layout": "Z"}, {"protocol": 9}])
    async def test_a_pod_of_another_language(self, peer: ProtocolPeer, change) -> None:
        peer.ready = msgspec.structs.replace(peer.ready, **change)
        with pytest.raises(ProtocolMismatchError, match="update the older of the two"):
            await AsyncMPClient(peer.addresses, ready_timeout=20).connect()

    def test_refused_hello(self, peer: ProtocolPeer) -> None:
        peer.answering = False

        def refuse() -> None:
            peer.control(Reject(code="protocol_mismatch", message="pod: 7 to 8, client: 1"))

        timer = threading.Timer(0.3, refuse)
        timer.start()
        with pytest.raises(ProtocolMismatchError, match="pod: 7 to 8"):
            SyncMPClient(peer.addresses, ready_timeout=20)
        timer.join()

    async def test_closing_while_connecting(self, peer: ProtocolPeer) -> None:
        peer.ready = None
        client = AsyncMPClient(peer.addresses, ready_timeout=20)
        waiting = asyncio.create_task(client.connect())
        await eventually_async(lambda: peer.hellos)
        await client.aclose()
        with pytest.raises(ClientClosedError):
            await waiting


async def test_names_are_resolved_by_the_client(peer: ProtocolPeer) -> None:
    addresses = {
        key: value.replace("127.0.0.1", "localhost") for key, value in peer.addresses.items()
    }
    async with AsyncMPClient(addresses, ready_timeout=10) as client:
        assert len([o async for o in client.generate(PROMPT, PARAMS)]) == 5


async def test_a_name_that_does_not_exist() -> None:
    addresses = {
        "input_address": "tcp://engine.invalid:5557",
        "output_address": "tcp://engine.invalid:5558",
    }
    with pytest.raises(StartupTimeoutError, match="its name cannot be resolved"):
        await AsyncMPClient(addresses, ready_timeout=2).connect()


async def test_a_broken_connection_that_comes_back_keeps_its_streams(peer: ProtocolPeer) -> None:
    peer.streaming = False
    async with AsyncMPClient(peer.addresses) as client:
        stream = await stream_of(client, peer)
        hellos = len(peer.hellos)
        cut_connections(peer)
        await eventually_async(lambda: len(peer.hellos) >= hellos + 2, "HELLO again on both")
        peer.streaming = True
        assert [t async for o in stream for t in o.new_token_ids] == [7, 11, 13, 7, 11]
        assert len({hello.nonce for hello in peer.hellos}) == 1


def cut_connections(peer: ProtocolPeer) -> None:
    """Shut down the TCP connections of this process that the peer accepted."""
    for entry in os.scandir("/proc/self/fd"):
        try:
            if not os.readlink(entry.path).startswith("socket:"):
                continue
        except FileNotFoundError:
            continue
        with socket.socket(fileno=os.dup(int(entry.name))) as copy:
            name = copy.getsockname()
            if copy.family == socket.AF_INET and name[1] in peer.ports:
                with contextlib.suppress(OSError):  # the listener has no peer
                    copy.getpeername()
                    copy.shutdown(socket.SHUT_RDWR)


async def test_an_address_zmq_does_not_take() -> None:
    addresses = {"input_address": "ipc://" + "x" * 200, "output_address": "tcp://[::1]:6"}
    with pytest.raises(StartupTimeoutError, match="ZMQ cannot connect there"):
        await AsyncMPClient(addresses, ready_timeout=0.5).connect()


async def test_a_stream_collected_in_another_thread_is_aborted_on_the_loop(
    peer: ProtocolPeer,
) -> None:
    peer.streaming = False
    async with AsyncMPClient(peer.addresses) as client:
        holder = [await stream_of(client, peer)]
        await asyncio.get_running_loop().run_in_executor(None, holder.clear)
        await eventually_async(lambda: peer.aborts == [peer.adds[0].request_id])
        assert client._driver.core.unfinished == 0
