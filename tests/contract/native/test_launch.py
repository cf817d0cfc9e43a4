"""Clients that start their engines: real processes, handshake, coordinator; all ends with them."""

import asyncio
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from enginecore_client import (
    AsyncMPClient,
    DPLBAsyncMPClient,
    EngineCommand,
    EngineDeadError,
    EngineStartupError,
    LaunchOptions,
    NativeOptions,
    OutputKind,
    RequestRejectedError,
    SamplingParams,
    StartupTimeoutError,
    SyncMPClient,
    launch_core_engines,
    make_async_mp_client,
    make_client,
)
from enginecore_wire.coordination import LoadReport
from support.eventually import eventually, eventually_async
from support.native_engines import alive, launched_stub, pids, stub_engine
from support.tiny_llama import VOCAB_SIZE, write_tiny_llama

PROMPT = [7, 11, 13]
SHORT = SamplingParams(max_tokens=5, temperature=0.0, ignore_eos=True, output_kind=OutputKind.DELTA)
LONG = SamplingParams(max_tokens=2000, ignore_eos=True, output_kind=OutputKind.DELTA)
STARTED = [7, 11, 13, 7, 11]
SLOW = launched_stub("--tokens", "2000", "--token-seconds", "0.01")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"))


def torch(model: Path, *options: str) -> EngineCommand:
    return EngineCommand.torch(str(model), "--threads", "1", "--device", "cpu", *options)


def tokens(client: SyncMPClient, **options: Any) -> list[int]:
    return [t for o in client.generate(PROMPT, SHORT, **options) for t in o.new_token_ids]


def test_one_engine() -> None:
    with SyncMPClient(engine_command=launched_stub()) as client:
        assert tokens(client) == STARTED
        assert client.get_supported_tasks() == ["generate"]
        (pid,) = pids(client).values()
    assert not alive(pid)


async def test_torch_engines_with_a_coordinator(model: Path) -> None:
    options = NativeOptions(model_name="tiny")
    async with AsyncMPClient(
        engine_command=torch(model), data_parallel_size=2, native=options
    ) as client:
        assert sorted(pids(client)) == [0, 1]
        both = await asyncio.gather(
            *(collect(client, data_parallel_rank=rank) for rank in (0, 1, 0, 1))
        )
        assert len(set(map(tuple, both))) == 1
        assert len(both[0]) == 5
        addresses = client.client_addresses
        assert addresses is not None
        assert addresses.stats_update_address is not None
        with pytest.raises(RequestRejectedError, match="prompt_token_ids"):
            await anext(client.generate([VOCAB_SIZE], SHORT))


async def collect(client: AsyncMPClient, **options: Any) -> list[int]:
    return [t async for o in client.generate(PROMPT, SHORT, **options) for t in o.new_token_ids]


def test_kill_9_of_one_of_two_engines_ends_its_requests_alone() -> None:
    with SyncMPClient(engine_command=SLOW, data_parallel_size=2,
                      launch=LaunchOptions(coordinator=False)) as client:  # fmt: skip
        streams = [client.generate(PROMPT, LONG, data_parallel_rank=rank) for rank in (0, 1)]
        for stream in streams:
            next(stream)
        os.kill(pids(client)[1], signal.SIGKILL)
        killed = time.monotonic()
        with pytest.raises(EngineDeadError) as caught:
            for _ in streams[1]:
                pass
        assert time.monotonic() - killed < 1.0
        assert caught.value.engine == 1
        for _ in range(20):
            next(streams[0])
        streams[0].close()
        eventually(lambda: 1 not in pids(client), "the process is reaped")
        assert tokens(client) == STARTED
        launcher = client.engine_manager
        launcher.restart(1)
        assert tokens(client, data_parallel_rank=1, retry=True, deadline=20) == STARTED
        first = pids(client)[1]
        launcher.restart(1)  # one that runs
        eventually(lambda: pids(client).get(1, first) != first, "another process")
        assert tokens(client, data_parallel_rank=1, retry=True, deadline=20) == STARTED


def test_launcher_process_that_outlives_its_engine() -> None:
    with SyncMPClient(engine_command=launched_stub("--launcher")) as client:
        assert tokens(client) == STARTED
        (pid,) = pids(client).values()
        (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        os.kill(int(child), signal.SIGKILL)
        killed = time.monotonic()
        with pytest.raises(EngineDeadError):
            client.get_output(timeout=10)
        assert time.monotonic() - killed < 1.0
    assert not alive(pid)


FAILURES = [
    ("at once", ("--fail", "start"), "ended with status 1", "stub: refusing to start"),
    ("while loading", ("--fail", "load"), "ended with status 1", "cannot load the model"),
]


@pytest.mark.parametrize(
    ("options", "ending", "line"), [r[1:] for r in FAILURES], ids=[r[0] for r in FAILURES]
)
@pytest.mark.parametrize("size", [1, 2])
def test_engine_that_ends_before_it_is_ready(options, ending: str, line: str, size: int) -> None:
    started = time.monotonic()
    with pytest.raises(EngineStartupError) as caught:
        SyncMPClient(engine_command=launched_stub(*options), data_parallel_size=size)
    assert time.monotonic() - started < 15
    text = str(caught.value)
    assert f"the engine of rank {caught.value.engine} {ending}" in text
    assert line in text


async def test_engine_that_ends_before_it_is_ready_async() -> None:
    client = AsyncMPClient(engine_command=launched_stub("--fail", "load"))
    with pytest.raises(EngineStartupError, match="rank 0 ended with status 1"):
        await client.connect()


def test_program_that_is_not_there() -> None:
    with pytest.raises(EngineStartupError, match=r"status 127.*cannot run /no/such/engine"):
        SyncMPClient(engine_command=["/no/such/engine", "{port}"])


def test_deadline_bounds_the_whole_start_and_names_rank_and_phase() -> None:
    started = time.monotonic()
    with pytest.raises(StartupTimeoutError) as caught:
        SyncMPClient(
            engine_command=launched_stub("--fail", "stall"),
            data_parallel_size=2,
            ready_timeout=3.0,
            launch=LaunchOptions(coordinator=False, stop_seconds=2.0),
        )
    assert time.monotonic() - started < 10
    text = str(caught.value)
    for rank in (0, 1):
        assert f"rank {rank} at " in text
    assert "INIT sent, loading for " in text


def test_engine_that_never_says_hello() -> None:
    command = [sys.executable, "-c", "import time; time.sleep(60)  # {port}"]
    with pytest.raises(StartupTimeoutError, match=r"rank 0 at .*: no HELLO yet for \d s"):
        SyncMPClient(engine_command=command, ready_timeout=1.5)


def test_engine_with_other_flags_is_refused() -> None:
    wrong = EngineCommand(SLOW.command, local=False)
    with pytest.raises(EngineStartupError, match="rank 0 says local=True, headless=False; expect"):
        SyncMPClient(engine_command=wrong)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "engine_command: got None"),
        ({"engine_command": ["run"]}, "no word has {port}"),
        ({"engine_command": SLOW, "data_parallel_size": 0}, "data_parallel_size"),
        ({"engine_command": SLOW, "engine_ranks": [0, 0]}, "engine_ranks"),
        ({"engine_command": SLOW, "client_count": 2}, "use launch_core_engines"),
        ({"engine_command": SLOW, "client_addresses": "x"}, "leave one of them out"),
        ({"engine_command": SLOW, "launch": LaunchOptions(local_ranks=(5,))}, "local_ranks"),
        ({"engine_command": SLOW, "launch": LaunchOptions(host="here")}, "launch.host: got 'here'"),
        ({"engine_command": SLOW, "launch": LaunchOptions(handshake_port=-1)}, "handshake_port"),
        ({"engine_command": SLOW, "launch": LaunchOptions(stop_seconds=-1)}, "launch.stop_seconds"),
        ({"engine_command": SLOW, "native": NativeOptions(vocab_size=0)}, "native.vocab_size"),
        ({"engine_command": SLOW, "native": NativeOptions(in_flight=0)}, "native.in_flight"),
        ({"engine_command": SLOW, "native": NativeOptions(hidden_size=-1)}, "native.hidden_size"),
        ({"engine_command": SLOW, "native": NativeOptions(probe_seconds=0)}, "probe_seconds"),
    ],
)
def test_wrong_options(options: dict[str, Any], text: str) -> None:
    with pytest.raises(RequestRejectedError, match=text):
        SyncMPClient(**options)


def test_factory_starts_one_engine() -> None:
    client = make_client(True, False, engine_command=launched_stub())
    assert isinstance(client, SyncMPClient)
    with client:
        assert tokens(client) == STARTED


async def test_factory_starts_engines_that_step_together() -> None:
    command = launched_stub()
    client = make_async_mp_client(engine_command=command, data_parallel_size=2)
    assert isinstance(client, DPLBAsyncMPClient)
    async with client:
        assert client.core_engines == [b"\x00\x00", b"\x01\x00"]
        for _ in range(3):
            assert await collect(client) == STARTED


async def test_some_ranks_are_started_elsewhere(caplog) -> None:
    options = LaunchOptions(local_ranks=(0,), coordinator=False)
    client = AsyncMPClient(engine_command=SLOW, data_parallel_size=2, launch=options)
    manager = client.engine_manager
    assert manager is not None
    port = await eventually_async(lambda: manager.handshake_address.rpartition(":")[2], "its port")
    with stub_engine(int(port), 1, "--tokens", "5") as elsewhere:
        async with client:
            assert sorted(manager.pids) == [0]
            both = [await collect(client, data_parallel_rank=rank) for rank in (0, 1)]
            assert both == [STARTED, STARTED]
            with stub_engine(int(port), 1) as second:
                await eventually_async(
                    lambda: "is in use" in caplog.text, "a refusal of the second one"
                )
                assert second.process.poll() is None
            elsewhere.process.kill()
            with pytest.raises(EngineDeadError) as caught:
                await client.get_output_async()
            assert caught.value.engine == 1
            with stub_engine(int(port), 1):
                again = {"data_parallel_rank": 1, "retry": True, "deadline": 20}
                assert await collect(client, **again) == STARTED


def test_client_made_in_a_thread_that_ends() -> None:
    made: list[SyncMPClient] = []
    thread = threading.Thread(
        target=lambda: made.append(SyncMPClient(engine_command=launched_stub()))
    )
    thread.start()
    thread.join()
    with made[0] as client:
        for _ in range(3):
            assert tokens(client) == STARTED


def test_coordinator_that_was_killed_is_started_again(model: Path) -> None:
    with SyncMPClient(engine_command=torch(model), data_parallel_size=2) as client:
        manager = client.engine_manager
        assert manager is not None
        first = manager.coordinator
        assert first is not None
        os.kill(first.pid, signal.SIGKILL)
        assert len(tokens(client)) == 5
        second = eventually(
            lambda: manager.coordinator if manager.coordinator != first else None, "another one"
        )
        assert second.addresses == first.addresses
        feed = zmq.Context.instance().socket(zmq.XSUB)
        feed.connect(second.addresses.stats_publish)
        feed.send(b"\x01")
        try:
            assert feed.poll(10_000)
            assert len(msgspec.msgpack.decode(feed.recv(), type=LoadReport).loads or ()) == 2
        finally:
            feed.close(0)
            zmq.Context.instance().term()


def test_engines_for_clients_made_by_hand(model: Path) -> None:
    with launch_core_engines(torch(model), data_parallel_size=2) as (manager, coordinator, told):
        assert coordinator is not None
        assert told.frontend_stats_publish_address == coordinator.get_stats_publish_address()
        addresses = {
            "input_address": told.inputs,
            "output_address": told.outputs,
            "stats_update_address": told.frontend_stats_publish_address,
            "mode": "bind",
        }
        with SyncMPClient(addresses, data_parallel_size=2) as client:
            assert len(tokens(client)) == 5
            running = dict(manager.pids)
    assert sorted(running) == [0, 1]
    for pid in running.values():
        assert not alive(pid)


def test_several_clients_share_launched_engines(tmp_path_factory) -> None:
    with launch_core_engines(
        launched_stub(), inputs=["ipc://@native-in-a", "ipc://@native-in-b"],
        outputs=["ipc://@native-out-a", "ipc://@native-out-b"],
    ) as (_, coordinator, told):  # fmt: skip
        assert coordinator is None
        clients = [
            SyncMPClient(
                {"input_address": i, "output_address": o, "mode": "bind"},
                client_count=2,
                client_index=index,
            )
            for index, (i, o) in enumerate(zip(told.inputs, told.outputs, strict=True))
        ]
        for client in clients:
            assert tokens(client) == STARTED
            client.close()
