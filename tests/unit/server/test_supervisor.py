"""The end of the EngineCore process is noticed by its pidfd alone: no socket, no SIGCHLD."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from enginecore_server.model_facts import ModelInputs
from enginecore_server.state import ServerState
from enginecore_server.supervisor import EngineSupervisor
from enginecore_wire.contract import ModelConfig, ServerConfig
from support.eventually import eventually_async

LAUNCHER = "sleep 300 & echo $!; wait; exec sleep 300"
"""Starts an engine, says its pid, and outlives it."""


@pytest.fixture
def launcher() -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        ["sh", "-c", LAUNCHER], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        yield process
        os.killpg(process.pid, signal.SIGKILL)


def pid_of_engine(launcher: "subprocess.Popen[str]") -> int:
    assert launcher.stdout is not None
    return int(launcher.stdout.readline())


def supervisor_into(failures: list[tuple[str, str]]) -> EngineSupervisor:
    state = ServerState(ServerConfig(name="n", model=ModelConfig("/m")), ModelInputs(100), 7)
    return EngineSupervisor(state, lambda: None, lambda *why: failures.append(why))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_death_of_the_engine_under_a_launcher_that_lives_on(
    launcher: "subprocess.Popen[str]", number: signal.Signals
) -> None:
    failures: list[tuple[str, str]] = []
    supervisor, pid = supervisor_into(failures), pid_of_engine(launcher)
    supervisor.engine_connected(pid)
    supervisor.engine_connected(pid)  # its second socket
    await asyncio.sleep(0)
    assert failures == []
    os.kill(pid, number)
    await eventually_async(lambda: bool(failures))
    assert launcher.poll() is None
    supervisor.close()
    assert failures == [("EngineExited", f"the EngineCore, process {pid}, has ended")]


async def test_after_closing_a_death_is_nobodys_business(
    launcher: "subprocess.Popen[str]",
) -> None:
    failures: list[tuple[str, str]] = []
    supervisor, pid = supervisor_into(failures), pid_of_engine(launcher)
    supervisor.engine_connected(pid)
    pidfd = os.pidfd_open(pid)
    supervisor.close()
    os.kill(pid, signal.SIGKILL)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(pidfd, ended.set)
    await ended.wait()
    asyncio.get_running_loop().remove_reader(pidfd)
    os.close(pidfd)
    assert failures == []
