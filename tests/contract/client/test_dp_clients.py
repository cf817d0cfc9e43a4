"""DPAsyncMPClient and DPLBAsyncMPClient over scripted pods and a scripted coordinator."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import zmq

from enginecore_client import (
    AddressError,
    AsyncMPClient,
    DPAsyncMPClient,
    DPLBAsyncMPClient,
    EngineCoreRequest,
    FinishReason,
    OutputKind,
    RequestRejectedError,
    SamplingParams,
    SyncMPClient,
    UtilityError,
)
from enginecore_wire.coordination import EngineLoad, LoadReport
from enginecore_wire.outputs import EngineCoreOutputs
from support.eventually import eventually_async, throughout
from support.protocol_peer import ProtocolPeer

PROMPT = [7, 11, 13]
LONG = SamplingParams(max_tokens=2000, output_kind=OutputKind.DELTA)
FIRST_REQ_OF_RANK_1_IN_WAVE_0 = bytes.fromhex("92c402010000")


class Coordinator:
    """The XPUB that clients subscribe to, in a test's hands."""

    def __init__(self, address: str = "tcp://127.0.0.1:0") -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.XPUB)
        self._socket.setsockopt(zmq.XPUB_VERBOSE, 1)
        self._socket.bind(address)
        self.address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.subscribed = 0
        self.messages: list[bytes] = []

    def read(self) -> list[bytes]:
        """Return what clients said so far, subscriptions apart."""
        while True:
            try:
                message = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return self.messages
            if message == b"\x01":
                self.subscribed += 1
            else:
                self.messages.append(message)

    def publish(self, report: LoadReport) -> None:
        self._socket.send(msgspec.msgpack.encode(report))

    def close(self) -> None:
        self._socket.close(0)
        self._context.term()


@pytest.fixture
def coordinator() -> Iterator[Coordinator]:
    running = Coordinator()
    yield running
    running.close()


@pytest.fixture
def peers() -> Iterator[list[ProtocolPeer]]:
    with ProtocolPeer(rank=0) as first, ProtocolPeer(rank=1) as second:
        for peer in (first, second):
            peer.streaming = False
            peer.results = {"is_sleeping": False, "reset_prefix_cache": True}
        yield [first, second]


def addresses(peers: list[ProtocolPeer], coordinator: Coordinator | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "input_address": [peer.input_address for peer in peers],
        "output_address": [peer.output_address for peer in peers],
    }
    return found | ({"stats_update_address": coordinator.address} if coordinator else {})


def request(name: str, rank: int | None = None) -> EngineCoreRequest:
    return EngineCoreRequest(name, PROMPT, sampling_params=LONG, data_parallel_rank=rank)


async def subscribed(coordinator: Coordinator) -> None:
    await eventually_async(lambda: coordinator.read() == [] and coordinator.subscribed)


async def test_one_rank_alone(peers: list[ProtocolPeer], coordinator: Coordinator) -> None:
    given = addresses(peers, coordinator)
    async with DPAsyncMPClient(given, data_parallel_rank=1) as client:
        assert client.engine_ranks_managed == [1]
        assert client.core_engine == b"\x01\x00"
        for number in range(6):
            await client.add_request_async(request(str(number)))
        await eventually_async(lambda: len(peers[1].adds) == 6)
        assert peers[0].hellos == peers[0].adds == []
        with pytest.raises(RequestRejectedError, match="there is no engine 0"):
            await client.add_request_async(request("other", rank=0))
        assert await client.is_sleeping_async() is False
        assert len(peers[1].calls) == 1


async def test_the_first_request_wakes_the_others(
    peers: list[ProtocolPeer], coordinator: Coordinator
) -> None:
    given = addresses(peers, coordinator)
    async with DPAsyncMPClient(given, data_parallel_rank=1) as client:
        await subscribed(coordinator)
        assert client.dp_engines_running() is False
        await client.add_request_async(request("a"))
        await client.add_request_async(request("b"))
        assert client.dp_engines_running() is True
        await eventually_async(lambda: coordinator.read() == [FIRST_REQ_OF_RANK_1_IN_WAVE_0])
        coordinator.publish(LoadReport(None, 0, True))
        coordinator.publish(LoadReport(None, 4, False))
        await eventually_async(lambda: client.current_wave == 4)
        assert client.dp_engines_running() is False
        await client.add_request_async(request("c"))
        await eventually_async(lambda: len(peers[1].adds) == 3)
        assert [add.current_wave for add in peers[1].adds] == [0, 0, 4]
        await eventually_async(lambda: len(coordinator.read()) == 2)
        assert msgspec.msgpack.decode(coordinator.read()[1]) == [b"\x01\x00", 4]


async def test_a_coordinator_that_comes_late_hears_of_it_too(peers: list[ProtocolPeer]) -> None:
    coordinator = Coordinator()
    address = coordinator.address
    coordinator.close()
    given = addresses(peers) | {"stats_update_address": address}
    async with DPLBAsyncMPClient(given) as client:
        await client.add_request_async(request("a", rank=0))
        late = Coordinator(address)
        try:
            await eventually_async(late.read, "FIRST_REQ again")
            assert msgspec.msgpack.decode(late.read()[0]) == [b"\x00\x00", 0]
        finally:
            late.close()


async def test_all_ranks_balanced(peers: list[ProtocolPeer], coordinator: Coordinator) -> None:
    async with DPLBAsyncMPClient(addresses(peers, coordinator)) as client:
        assert client.engine_ranks_managed == [0, 1]
        await subscribed(coordinator)
        for number in range(10):
            await client.add_request_async(request(str(number)))
        await eventually_async(lambda: [len(peer.adds) for peer in peers] == [5, 5])
        coordinator.publish(LoadReport([EngineLoad(9, 90, 0.9), EngineLoad(0, 5, 0.1)], 1, True))
        await eventually_async(lambda: client.current_wave == 1)
        for number in range(10, 16):
            await client.add_request_async(request(str(number)))
        await eventually_async(lambda: [len(peer.adds) for peer in peers] == [5, 11])
        for number in range(3):
            await client.add_request_async(request(f"named {number}", rank=0))
        await eventually_async(lambda: [len(peer.adds) for peer in peers] == [8, 11])


async def test_two_clients_begin_at_different_engines(peers: list[ProtocolPeer]) -> None:
    for index in range(2):
        async with DPLBAsyncMPClient(
            addresses(peers), client_count=2, client_index=index
        ) as client:
            await client.add_request_async(request(str(index)))
            await eventually_async(lambda i=index: len(peers[i].adds) == 1)


async def test_aborts_go_to_the_engine_that_has_the_request(peers: list[ProtocolPeer]) -> None:
    async with DPLBAsyncMPClient(addresses(peers)) as client:
        streams = [
            client.generate(PROMPT, LONG, name, data_parallel_rank=rank)
            for name, rank in (("a", 0), ("b", 1), ("c", 1))
        ]
        await eventually_async(lambda: [len(peer.adds) for peer in peers] == [1, 2])
        await client.abort_requests_async(["b", "a", "unknown"])
        await eventually_async(lambda: [len(peer.aborts) for peer in peers] == [1, 1])
        (aborted,) = [add.request_id for add in peers[1].adds if add.external_req_id == "b"]
        assert peers[1].aborts == [aborted]
        for stream in streams[:2]:
            assert [o.finish_reason async for o in stream] == [FinishReason.ABORT]
        await streams[2].aclose()


async def test_control_calls_ask_every_engine(peers: list[ProtocolPeer]) -> None:
    async with DPLBAsyncMPClient(addresses(peers)) as client:
        assert await client.is_sleeping_async() is False
        assert await client.reset_prefix_cache_async() is True
        peers[1].results = {"is_sleeping": True, "reset_prefix_cache": False}
        assert await client.reset_prefix_cache_async() is False
        with pytest.raises(UtilityError, match=r"engines disagree: \[False, True\]"):
            await client.is_sleeping_async()
        assert await client.call_utility_async("is_sleeping", engine=1) is True


async def test_independent_engines_have_no_waves(
    peers: list[ProtocolPeer], coordinator: Coordinator
) -> None:
    async with AsyncMPClient(addresses(peers, coordinator)) as client:
        await subscribed(coordinator)

        def nothing() -> None:
            assert coordinator.read() == []

        coordinator.publish(LoadReport(None, 4, True))
        await client.add_request_async(request("a"))
        await eventually_async(lambda: sum(len(peer.adds) for peer in peers) == 1)
        throughout(0.2, nothing)
        assert client.dp_engines_running() is False
        assert [add.current_wave for peer in peers for add in peer.adds] == [0]


def test_a_blocking_client_of_one_rank_knows_when_all_pause(peers: list[ProtocolPeer]) -> None:
    """Each process of vLLM's offline data parallelism blocks until all ranks are idle."""
    with SyncMPClient(addresses(peers[:1]), lockstep=True) as client:
        assert client.dp_engines_running() is False
        client.add_request(request("a"))
        assert client.dp_engines_running() is True
        client.abort_requests(["a"])
        peers[0].outputs(EngineCoreOutputs(wave_complete=0))
        assert client.get_output(5).wave_complete == 0
        assert client.dp_engines_running() is False


@pytest.mark.parametrize("rank", [2, -1])
def test_a_rank_that_has_no_address(peers: list[ProtocolPeer], rank: int) -> None:
    with pytest.raises((AddressError, RequestRejectedError), match=r"rank|ranks"):
        DPAsyncMPClient(addresses(peers), data_parallel_rank=rank)
