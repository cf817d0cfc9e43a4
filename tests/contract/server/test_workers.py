"""An engine that has workers cannot lose one; other processes below it may come and go."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from enginecore_server.engine_processes import EngineProcesses
from enginecore_wire.outputs import ENGINE_CORE_DEAD, EngineCoreOutputs, FinishReason
from support.eventually import eventually_async
from support.pod import Pod, alive
from support.raw_client import RawClient, request
from support.stub_workers import HELPER

MakePod = Callable[..., Pod]
Connect = Callable[..., RawClient]

DEATH_SECONDS = 1.0
WORKERS = ("--workers", "2")
ENDLESS = (*WORKERS, "--tokens", "100000", "--token-seconds", "0.01", "--max-model-len", "200000")


def below(pod: Pod) -> dict[str, int]:
    """Return title → pid of the processes under a pod's server."""
    pids = pod.engine_processes()
    return {Path(f"/proc/{pid}/cmdline").read_text().partition("\0")[0]: pid for pid in pids}


@pytest.mark.parametrize("options", [(), ("--launcher",)], ids=["engine alone", "launcher"])
@pytest.mark.parametrize("victim", ["VLLM::Worker_TP0", "VLLM::Worker_TP1"])
def test_a_killed_worker_is_told_to_every_client(
    make_pod: MakePod, connect: Connect, options: tuple[str, ...], victim: str
) -> None:
    pod = make_pod(*options, *ENDLESS)
    clients = [connect(pod) for _ in range(2)]
    for number, client in enumerate(clients):
        client.ready()
        client.add(request(f"stream-{number}", max_tokens=100_000))
        client.expect(EngineCoreOutputs)
    pids, worker = pod.engine_processes(), below(pod)[victim]
    os.kill(worker, signal.SIGKILL)
    killed = time.monotonic()
    for client in clients:
        client.until(lambda message: message == ENGINE_CORE_DEAD, DEATH_SECONDS)
    assert time.monotonic() - killed <= DEATH_SECONDS
    assert pod.process.wait(10) == 1
    assert not any(alive(pid) for pid in pids)
    lost = f"engine lost: EngineExited: the worker {victim}, process {worker}, has ended"
    assert lost in "\n".join(pod.log)


def test_another_process_of_the_engine_may_end(make_pod: MakePod, connect: Connect) -> None:
    pod = make_pod(*WORKERS, "--tokens", "40", "--token-seconds", "0.02")
    client = connect(pod)
    client.ready()
    client.add(request("on", max_tokens=40))
    client.expect(EngineCoreOutputs)
    os.kill(below(pod)[HELPER], signal.SIGKILL)
    assert client.tokens("on")[1] is FinishReason.LENGTH
    assert pod.status().phase == "Ready"


def test_workers_that_end_with_their_engine_are_no_death(make_pod: MakePod) -> None:
    pod = make_pod("--launcher", *WORKERS)
    pids = pod.engine_processes()
    pod.terminate()
    assert pod.process.wait(15) == 0
    assert not any(alive(pid) for pid in pids)
    assert "engine lost" not in "\n".join(pod.log)


FORKING = """
import os
helper = os.fork()
if helper == 0:
    os.read(0, 1)
    os._exit(0)
print(helper, flush=True)
os.waitpid(helper, 0)
print("it has ended", flush=True)
os.read(0, 1)
"""


async def test_what_a_worker_forked_may_end() -> None:
    """It has the worker's title, and is none."""
    told: list[str] = []
    watched = EngineProcesses(told.append)
    with subprocess.Popen(  # noqa: ASYNC220 - it begins at once
        ["VLLM::Worker_TP0", "-c", FORKING],
        executable=sys.executable,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as worker:
        assert worker.stdout is not None
        helper = int(worker.stdout.readline())
        watched.watch_core(os.getpid())
        watched.watch_workers()
        os.kill(helper, signal.SIGKILL)
        assert worker.stdout.readline() == "it has ended\n"
        for _ in range(3):
            await asyncio.sleep(0)
        assert told == []
        worker.kill()
        await eventually_async(lambda: told)
    assert told == [f"the worker VLLM::Worker_TP0, process {worker.pid}, has ended"]
    watched.close()
