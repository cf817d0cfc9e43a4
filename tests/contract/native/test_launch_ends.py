"""How launched engines end: with their client, however that ends; in order, and with force."""

import asyncio
import gc
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Gauge

from enginecore_client import (
    AddressError,
    AsyncMPClient,
    ClientClosedError,
    EngineCommand,
    LaunchOptions,
    OutputKind,
    SamplingParams,
    StartupTimeoutError,
    SyncMPClient,
)
from enginecore_client.testing import FakeEngine
from support.eventually import eventually
from support.leaks import holdings
from support.native_engines import alive, directories, launched_stub, pids

PROMPT = [7, 11, 13]
LONG = SamplingParams(max_tokens=2000, output_kind=OutputKind.DELTA)
SLOW = launched_stub("--tokens", "2000", "--token-seconds", "0.01")


def test_engine_that_ignores_sigterm_is_killed_with_what_it_started() -> None:
    script = (
        "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "subprocess.Popen(['sleep', '300']); time.sleep(300)  # {port}"
    )
    started = time.monotonic()
    with pytest.raises(StartupTimeoutError):
        SyncMPClient(
            engine_command=[sys.executable, "-c", script], ready_timeout=1.0,
            launch=LaunchOptions(stop_seconds=0.5),
        )  # fmt: skip
    assert time.monotonic() - started < 8


def test_shutdown_bounds_how_long_engines_may_take_to_end() -> None:
    client = SyncMPClient(engine_command=FakeEngine.command())
    assert client.engine_manager is not None
    (pid,) = client.engine_manager.pids.values()
    os.kill(pid, signal.SIGSTOP)  # until it goes on it ends by SIGKILL alone
    started = time.monotonic()
    client.shutdown(timeout=0.2)
    assert time.monotonic() - started < LaunchOptions().stop_seconds / 2
    assert not alive(pid)


def test_closing_ends_requests_with_the_clients_own_error() -> None:
    client = SyncMPClient(engine_command=SLOW)
    stream = client.generate(PROMPT, LONG)
    next(stream)
    errors: list[BaseException] = []

    def read() -> None:
        try:
            for _ in stream:
                pass
        except ClientClosedError as error:
            errors.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    started = time.monotonic()
    client.close()
    assert time.monotonic() - started < 5
    reader.join(5)
    assert len(errors) == 1
    client.close()


WITNESS = """
import os, pathlib, signal, subprocess, sys
out, command = sys.argv[1], sys.argv[2:]
engine = subprocess.Popen(command)
def end(*_):
    parent = os.getppid()
    tasks = pathlib.Path(f"/proc/{parent}/task").iterdir()
    children = [c for t in tasks for c in (t / "children").read_text().split()]
    lines = [pathlib.Path(f"/proc/{c}/cmdline").read_text() for c in children]
    there = any("enginecore_coordinator" in line for line in lines)
    engine.terminate()
    engine.wait()
    pathlib.Path(out).write_text(f"coordinator there: {there}")
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
signal.pause()
"""


def test_engines_end_before_their_coordinator(tmp_path: Path) -> None:
    (script := tmp_path / "witness.py").write_text(WITNESS)
    out = tmp_path / "out"
    command = [sys.executable, str(script), str(out), *launched_stub().command]
    client = SyncMPClient(
        engine_command=EngineCommand(tuple(command), local=True),
        launch=LaunchOptions(coordinator=True),
    )
    coordinator = client.engine_manager.coordinator
    assert coordinator is not None
    assert alive(coordinator.pid)
    client.close()
    assert out.read_text() == "coordinator there: True"
    assert not alive(coordinator.pid)


async def test_closing_does_not_hold_up_the_loop() -> None:
    slow_to_end = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    )
    client = AsyncMPClient(
        engine_command=[sys.executable, "-c", f"{slow_to_end}  # {{port}}"],
        launch=LaunchOptions(stop_seconds=1.0),
    )
    await asyncio.sleep(0.3)
    ticks, closing = 0, asyncio.create_task(client.aclose())
    while not closing.done():
        await asyncio.sleep(0.01)
        ticks += 1
    await closing
    assert ticks > 50


def test_construction_that_fails_half_way_leaves_nothing() -> None:
    registry = CollectorRegistry()
    Gauge("enginecore_client_engine_ready", "in the way", registry=registry)
    before = holdings(descendants=True)
    with pytest.raises(ValueError, match="registry: it has"):
        SyncMPClient(engine_command=SLOW, registry=registry)
    assert holdings(descendants=True).processes == before.processes


def test_host_that_is_not_ours() -> None:
    elsewhere = LaunchOptions(host="203.0.113.1")
    with pytest.raises(AddressError, match="no interface of this machine has that address"):
        SyncMPClient(engine_command=SLOW, launch=elsewhere)


def test_collected_client_ends_its_engines() -> None:
    client = SyncMPClient(engine_command=launched_stub())
    (pid,) = pids(client).values()
    gone = weakref.ref(client)
    del client
    gc.collect()
    assert gone() is None
    eventually(lambda: not alive(pid), "the engine's end")


async def test_collected_async_client_ends_its_engines() -> None:
    client = AsyncMPClient(engine_command=launched_stub())
    await client.connect()
    (pid,) = pids(client).values()
    del client
    gc.collect()
    await asyncio.sleep(0)
    eventually(lambda: not alive(pid), "the engine's end")


def test_async_client_left_with_its_loop() -> None:
    async def use() -> tuple[AsyncMPClient, int]:
        client = AsyncMPClient(engine_command=launched_stub())
        await client.connect()
        return client, pids(client)[0]

    client, pid = asyncio.run(use())
    client.close()
    assert not alive(pid)


def test_async_client_never_awaited_starts_nothing() -> None:
    before = holdings(descendants=True)
    client = AsyncMPClient(engine_command=launched_stub())
    assert holdings(descendants=True).processes == before.processes
    client.close()


ORPHANS = """
import sys, time
from enginecore_client import SyncMPClient
client = SyncMPClient(engine_command={command!r}, data_parallel_size=2)
print(*client.engine_manager.pids.values(), flush=True)
time.sleep(300)
"""


def test_engines_end_with_a_client_that_was_killed() -> None:
    script = ORPHANS.replace("{command!r}", repr(list(SLOW.command)).replace("'--local', ", ""))
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    engines = parent.stdout.readline().split()
    assert len(engines) == 2
    parent.kill()
    parent.wait()
    parent.stdout.close()
    for pid in map(int, engines):
        eventually(lambda p=pid: not alive(p), "the end of an orphan")
    for directory in directories(parent.pid):
        shutil.rmtree(directory)
