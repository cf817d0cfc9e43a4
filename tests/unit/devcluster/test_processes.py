"""A process is known by pid and start time, never by its pid alone."""

import dataclasses
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster.errors import DevclusterError
from devcluster.processes import (
    RUN_VARIABLE,
    ProcessIdentity,
    identify,
    is_alive,
    kill,
    log_tail,
    marked_processes,
    own_identity,
    parse_stat,
    spawn,
    wait_until,
)

# The fields after the state, up to the start time (22nd field of the line).
BETWEEN = "1 100 100 0 -1 4194560 5 0 0 0 1 2 0 0 20 0 1 0"


def stat_line(pid: int, name: str, state: str, start: int) -> str:
    return f"{pid} ({name}) {state} {BETWEEN} {start} 10485760 500 18446744073709551615\n"


def write_process(
    proc: Path, pid: int, *, state: str = "S", start: int = 7, environ: bytes = b""
) -> None:
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "stat").write_text(stat_line(pid, "etcd", state, start))
    (proc / str(pid) / "environ").write_bytes(environ)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("name", ["etcd", "tmux: server", "a) S 1 (b", "(sd-pam)", ""])
@pytest.mark.parametrize(("state", "ended"), [("S", False), ("R", False), ("Z", True), ("X", True)])
def test_stat_is_parsed_whatever_the_name(name: str, state: str, ended: bool) -> None:
    stat = parse_stat(stat_line(42, name, state, 123456))
    assert (stat.state, stat.start_ticks, stat.ended) == (state, 123456, ended)


@pytest.mark.parametrize(
    ("state", "start", "alive"),
    [("S", 7, True), ("S", 8, False), ("Z", 7, False)],
    ids=["itself", "pid of another", "zombie"],
)
def test_is_alive(tmp_path: Path, state: str, start: int, alive: bool) -> None:
    write_process(tmp_path, 42, state=state, start=start)
    assert is_alive(ProcessIdentity(42, 7), tmp_path) is alive


def test_no_process_has_no_identity(tmp_path: Path) -> None:
    assert identify(42, tmp_path) is None


def test_own_identity_is_alive() -> None:
    assert is_alive(own_identity())


def test_kill_ends_the_process(sleeper: subprocess.Popen[bytes]) -> None:
    identity = identify(sleeper.pid)
    assert identity is not None
    kill([identity])
    assert not is_alive(identity)


def test_kill_leaves_a_stranger_with_the_same_pid_alone(sleeper: subprocess.Popen[bytes]) -> None:
    identity = identify(sleeper.pid)
    assert identity is not None
    earlier = dataclasses.replace(identity, start_ticks=identity.start_ticks - 1)
    kill([earlier])
    assert is_alive(identity)


def test_marked_processes_are_those_of_the_run(tmp_path: Path) -> None:
    run = Path("/state/mine")
    mark = f"{RUN_VARIABLE}={run}".encode()
    write_process(tmp_path, 10, environ=b"PATH=/bin\0" + mark + b"\0")
    write_process(tmp_path, 11, environ=mark + b"-too\0")
    write_process(tmp_path, 12, environ=b"OTHER=" + mark + b"\0")
    write_process(tmp_path, 13, environ=mark + b"\0", state="Z")
    (tmp_path / "sys").mkdir()
    assert marked_processes(run, tmp_path) == [ProcessIdentity(10, 7)]


def test_spawned_process_carries_the_mark_and_writes_its_log(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "env.log"
    identity = spawn(["/usr/bin/env"], log=log, run=tmp_path, environ={"ONLY": "this"})
    os.waitid(os.P_PID, identity.pid, os.WEXITED)
    assert set(log.read_text().split()) == {"ONLY=this", f"{RUN_VARIABLE}={tmp_path}"}


def test_spawn_names_the_program_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(DevclusterError, match="cannot start /no/such/program: No such file"):
        spawn(["/no/such/program"], log=tmp_path / "log", run=tmp_path)


def test_wait_ends_at_once_with_the_needed_process(tmp_path: Path) -> None:
    log = tmp_path / "etcd.log"
    log.write_text("bind: address already in use\n")
    ended = ProcessIdentity(own_identity().pid, 0)
    with pytest.raises(DevclusterError, match=r"etcd ended while waiting: it is up[^$]*in use"):
        wait_until(lambda: False, what="it is up", seconds=1000, needs={log: ended})


def test_wait_ends_with_its_time(tmp_path: Path) -> None:
    log = tmp_path / "etcd.log"
    with pytest.raises(DevclusterError, match=r"not within 0 s: it is up[^$]*\(no output\)"):
        wait_until(lambda: False, what="it is up", seconds=0, needs={log: own_identity()})


def test_log_tail_is_the_end(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_bytes(b"start" + b"x" * 5000 + b"\xff end\n")
    tail = log_tail(log)
    assert "start" not in tail
    assert tail.endswith("\N{REPLACEMENT CHARACTER} end")
