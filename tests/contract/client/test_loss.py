"""Engines and pods that die, come back, drain or never start (C1, C2, C4, C10)."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from enginecore_client import (
    AsyncMPClient,
    EngineCoreRequest,
    EngineDeadError,
    EngineDrainingError,
    EngineNotReadyError,
    FinishReason,
    OutputKind,
    RequestRejectedError,
    SamplingParams,
    StartupTimeoutError,
    SyncMPClient,
)
from enginecore_wire.contract import TransportConfig
from support.eventually import eventually_async
from support.faces import params
from support.pod import Pod, client_addresses
from support.protocol_peer import ProtocolPeer

PROMPT = [7, 11, 13]
LONG = SamplingParams(max_tokens=2000, output_kind=OutputKind.DELTA)
SLOW = ("--tokens", "2000", "--token-seconds", "0.01")


def kill_engine(pod: Pod) -> None:
    os.kill(pod.engine_processes()[-1], signal.SIGKILL)


def in_thread(action: Callable[[], Any]) -> "Future[tuple[BaseException | None, float]]":
    """Run `action` in a thread; the result is what it raised, and when."""
    future: Future[tuple[BaseException | None, float]] = Future()

    def run() -> None:
        error = None
        try:
            action()
        except EngineDeadError as raised:
            error = raised
        future.set_result((error, time.monotonic()))

    threading.Thread(target=run).start()
    return future


@pytest.mark.parametrize(
    ("kill", "budget"), [(kill_engine, 1.0), (Pod.kill, 5.0)], ids=["engine", "pod"]
)
def test_fault_21443_sync_every_pending_call_fails(start_pod, kill, budget: float) -> None:
    pod = start_pod(*SLOW).wait_ready()
    with SyncMPClient(client_addresses([pod])) as client:
        streams = [client.generate(PROMPT, LONG) for _ in range(3)]
        for stream in streams:
            next(stream)
        client.add_request(EngineCoreRequest("queued", PROMPT, sampling_params=LONG))
        client.get_output(5)
        pending = [in_thread(lambda s=s: [None for _ in s]) for s in streams]

        def read() -> None:
            while True:
                client.get_output()

        pending.append(in_thread(read))
        started = time.monotonic()
        kill(pod)
        for future in pending:
            error, at = future.result(timeout=budget + 5)
            assert isinstance(error, EngineDeadError), repr(error)
            assert error.engine == 0
            assert at - started < budget
        assert error.request_ids == ("queued",)
        with pytest.raises(EngineDeadError, match="no engine is alive: rank 0 at tcp://"):
            client.call_utility("is_sleeping")


@pytest.mark.parametrize(
    ("kill", "budget"), [(kill_engine, 1.0), (Pod.kill, 5.0)], ids=["engine", "pod"]
)
async def test_fault_21443_async_every_pending_call_fails(start_pod, kill, budget: float) -> None:
    pod = start_pod(*SLOW).wait_ready()
    async with AsyncMPClient(client_addresses([pod])) as client:

        async def drain(stream) -> None:
            async for _ in stream:
                pass

        async def read() -> None:
            while True:
                await client.get_output_async()

        await client.add_request_async(EngineCoreRequest("q", PROMPT, sampling_params=LONG))
        tasks = [asyncio.create_task(drain(client.generate(PROMPT, LONG))) for _ in range(3)]
        tasks += [asyncio.create_task(read())]
        await eventually_async(lambda: pod.status().in_flight == 4, "all are under way")
        started = time.monotonic()
        kill(pod)
        done, _ = await asyncio.wait(tasks, timeout=budget)
        assert len(done) == len(tasks), f"after {time.monotonic() - started:.2f} s"
        for task in tasks:
            assert isinstance(task.exception(), EngineDeadError), repr(task.exception())
        assert client._driver.core.unfinished == 0


async def test_pending_utility_call_fails_too(peer: ProtocolPeer) -> None:
    async with AsyncMPClient(peer.addresses) as client:
        peer.answering = False
        calls = [asyncio.create_task(client.is_sleeping_async()) for _ in range(2)]
        await eventually_async(lambda: len(peer.calls) == 2)
        peer.die()
        for call in calls:
            with pytest.raises(EngineDeadError, match="the engine process died"):
                await call


async def test_death_of_one_engine_is_raised_once_and_the_others_go_on(start_pod) -> None:
    pods = [start_pod(*SLOW, "--rank", str(rank), rank=rank) for rank in range(3)]
    for pod in pods:
        pod.wait_ready()
    async with AsyncMPClient(client_addresses(pods)) as client:
        for rank in range(3):
            await client.add_request_async(
                EngineCoreRequest(str(rank), PROMPT, sampling_params=LONG, data_parallel_rank=rank)
            )
        pods[1].kill()

        async def read() -> None:
            while True:
                await client.get_output_async()

        with pytest.raises(EngineDeadError) as caught:
            await read()
        assert (caught.value.engine, caught.value.request_ids) == (1, ("1",))
        seen: set[str] = set()
        async with asyncio.timeout(5):
            while seen != {"0", "2"}:
                outputs = await client.get_output_async()
                assert outputs.engine_index != 1
                seen |= {output.request_id for output in outputs.outputs}


async def test_a_pod_on_the_same_ports_is_used_again(start_pod) -> None:
    first = start_pod(*SLOW, epoch=1).wait_ready()
    ports = TransportConfig(
        host="127.0.0.1",
        input_port=first.input_port,
        output_port=first.output_port,
        http_port=0,
    )
    async with AsyncMPClient(client_addresses([first])) as client:
        stream = client.generate(PROMPT, LONG)
        await anext(stream)
        first.kill()
        with pytest.raises(EngineDeadError):
            async for _ in stream:
                pass
        with pytest.raises(EngineDeadError):
            await anext(client.generate(PROMPT, LONG))
        waiting = client.generate(PROMPT, params(3), retry=True, deadline=30)
        start_pod(*SLOW, epoch=2, transport=ports).wait_ready()
        tokens = [token async for output in waiting for token in output.new_token_ids]
        assert tokens == PROMPT


async def test_retry_moves_requests_without_a_token_to_another_engine(start_pod) -> None:
    silent = start_pod("--ignore", "--rank", "0", rank=0).wait_ready()
    other = start_pod("--tokens", "5", "--rank", "1", rank=1).wait_ready()
    async with AsyncMPClient(client_addresses([silent, other]), retry=True) as client:
        stream = client.generate(PROMPT, params(3), "moved")
        await eventually_async(lambda: silent.status().in_flight == 1, "it went to rank 0")
        silent.kill()
        outputs = [output async for output in stream]
        assert [token for output in outputs for token in output.new_token_ids] == PROMPT
        assert outputs[-1].request_id == "moved"


async def test_draining_pod_finishes_its_streams_and_takes_nothing_new(start_pod) -> None:
    pod = start_pod("--tokens", "100", "--token-seconds", "0.01").wait_ready()
    async with AsyncMPClient(client_addresses([pod])) as client:
        stream = client.generate(PROMPT, params(60))
        await anext(stream)
        pod.terminate()
        await eventually_async(lambda: not client._driver.core._fleet.working()[0].accepting)
        with pytest.raises(EngineDrainingError) as caught:
            await anext(client.generate(PROMPT, LONG))
        assert caught.value.retryable
        outputs = [output async for output in stream]
        assert len(outputs) == 59
        assert outputs[-1].finish_reason is FinishReason.LENGTH


async def _connect_async(addresses: dict[str, Any], ready_timeout: float) -> None:
    async with AsyncMPClient(addresses, ready_timeout=ready_timeout):
        pass


def connect_async(addresses: dict[str, Any], ready_timeout: float) -> None:
    asyncio.run(_connect_async(addresses, ready_timeout))


def connect_sync(addresses: dict[str, Any], ready_timeout: float) -> None:
    with SyncMPClient(addresses, ready_timeout=ready_timeout):
        pass


@pytest.mark.parametrize("phase", ["nobody", "loading"])
@pytest.mark.parametrize("connect", [connect_async, connect_sync], ids=["async", "sync"])
def test_fault_48031_startup_deadline_names_rank_and_phase(
    start_pod, connect: Callable[[dict[str, Any], float], None], phase: str
) -> None:
    ready = start_pod("--rank", "0", rank=0).wait_ready()
    if phase == "loading":
        missing = start_pod("--load-seconds", "30", "--rank", "1", rank=1)
        addresses = client_addresses([ready, missing])
        text = rf"rank 1 at {missing.input_address}: phase (Loading|Handshaking|Starting)"
    else:
        addresses = client_addresses([ready])
        addresses["input_address"].append("tcp://127.0.0.1:9")
        addresses["output_address"].append("tcp://127.0.0.1:10")
        text = "rank 1 at tcp://127.0.0.1:9: Connecting, nobody answers there"
    started = time.monotonic()
    with pytest.raises(StartupTimeoutError, match=text) as caught:
        connect(addresses, 1.5)
    assert 1.4 < time.monotonic() - started < 10
    assert "rank 0" not in str(caught.value)
    assert isinstance(caught.value, EngineNotReadyError)


def test_fault_17676_waiting_for_an_engine_ends_at_the_deadline() -> None:
    addresses = {"input_address": "tcp://127.0.0.1:9", "output_address": "tcp://127.0.0.1:10"}
    with pytest.raises(StartupTimeoutError, match=r"within 0\.3 s: rank 0 at tcp://127\.0\.0\.1:9"):
        SyncMPClient(addresses, ready_timeout=0.3)


def test_enough_engines_are_ready(peer: ProtocolPeer) -> None:
    addresses = {
        "input_address": [peer.input_address, "tcp://127.0.0.1:9"],
        "output_address": [peer.output_address, "tcp://127.0.0.1:10"],
    }
    with SyncMPClient(addresses, ready_timeout=10, min_ready=1) as client:
        assert list(client.generate([7, 11, 13], params(3)))
    text = r"less than min_ready=2 engines of .* within 1 s: rank 1.*; these addresses are fixed.*"
    with pytest.raises(StartupTimeoutError, match=f"{text}; min_ready=1 starts with those"):
        SyncMPClient(addresses, ready_timeout=1, min_ready=2)
    for wrong in (0, "1", True):
        with pytest.raises(RequestRejectedError, match="min_ready: got"):
            SyncMPClient(addresses, min_ready=wrong)  # type: ignore[arg-type]


async def test_enough_engines_are_ready_on_a_loop(peer: ProtocolPeer) -> None:
    addresses = {
        "input_address": ["tcp://127.0.0.1:9", peer.input_address],
        "output_address": ["tcp://127.0.0.1:10", peer.output_address],
    }
    async with AsyncMPClient(addresses, ready_timeout=10, min_ready=1) as client:
        assert [output async for output in client.generate([7, 11, 13], params(3))]
