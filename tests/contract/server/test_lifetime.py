"""How a server starts, notices death, drains and ends."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from enginecore_wire.contract import CONFIG_ENV, LivenessConfig, ServerStatus
from enginecore_wire.control import Draining, PhaseChange, Reject
from enginecore_wire.outputs import ENGINE_CORE_DEAD, EngineCoreOutputs, FinishReason
from support.eventually import eventually
from support.pod import DRAIN_TOKEN, LOOPBACK, Pod, alive, stub_config
from support.pod_pages import http, sample
from support.raw_client import RawClient, request

MakePod = Callable[..., Pod]
Connect = Callable[..., RawClient]

DEATH_SECONDS = 1.0
ENDLESS = ("--tokens", "100000", "--token-seconds", "0.01", "--max-model-len", "200000")


def dead(message: Any) -> bool:
    return message == ENGINE_CORE_DEAD


def streaming(connect: Connect, pod: Pod, count: int = 2) -> list[RawClient]:
    """Return clients that each receive an endless stream."""
    clients = [connect(pod) for _ in range(count)]
    for number, client in enumerate(clients):
        client.ready()
        client.add(request(f"stream-{number}", max_tokens=100_000))
        client.expect(EngineCoreOutputs)
    return clients


@pytest.mark.parametrize("victim", ["engine", "launcher"])
def test_a_killed_process_is_told_to_every_client(
    make_pod: MakePod, connect: Connect, victim: str
) -> None:
    pod = make_pod("--launcher", *ENDLESS)
    clients = streaming(connect, pod)
    launcher, engine = pod.engine_processes()
    killed = time.monotonic()
    os.kill(engine if victim == "engine" else launcher, signal.SIGKILL)
    for client in clients:
        client.until(dead, DEATH_SECONDS)
    assert time.monotonic() - killed <= DEATH_SECONDS
    assert pod.process.wait(10) == 1
    assert not _alive(launcher)
    assert not _alive(engine)


@pytest.mark.parametrize("order", ["die", "dead"])
def test_an_engine_that_ends_itself_is_told(
    make_pod: MakePod, connect: Connect, order: str
) -> None:
    pod = make_pod(*ENDLESS)
    client = streaming(connect, pod, 1)[0]
    client.call(1, "collective_rpc", order)
    client.until(dead, DEATH_SECONDS)
    assert pod.process.wait(10) == 1
    assert "Failed" in pod.tail() or "engine lost" in pod.tail()


@pytest.mark.parametrize("busy", [True, False], ids=["with work", "idle"])
def test_a_stopped_engine_misses_its_step_deadline(
    make_pod: MakePod, connect: Connect, busy: bool
) -> None:
    pod = make_pod(*ENDLESS, liveness=LivenessConfig(step_deadline_seconds=1.0))
    clients = streaming(connect, pod) if busy else [connect(pod)]
    engine = pod.engine_processes()[-1]
    os.kill(engine, signal.SIGSTOP)
    for client in clients:
        client.until(dead, 5.0)
    assert pod.process.wait(10) == 1
    assert not _alive(engine)


@pytest.mark.parametrize("order", ["hang", "mute"])
def test_a_stuck_engine_misses_its_step_deadline(
    make_pod: MakePod, connect: Connect, order: str
) -> None:
    pod = make_pod(*ENDLESS, liveness=LivenessConfig(step_deadline_seconds=0.6))
    client = streaming(connect, pod, 1)[0]
    client.call(1, "collective_rpc", order)
    client.until(dead, 5.0)
    assert pod.process.wait(10) == 1


def test_an_engine_that_ignores_its_work_misses_its_step_deadline(
    make_pod: MakePod, connect: Connect
) -> None:
    pod = make_pod("--ignore", liveness=LivenessConfig(step_deadline_seconds=0.6))
    client = connect(pod)
    client.ready()
    client.add(request("ignored"))
    client.until(dead, 5.0)


def test_an_idle_engine_lives_past_its_step_deadline(make_pod: MakePod, connect: Connect) -> None:
    pod = make_pod(liveness=LivenessConfig(step_deadline_seconds=0.4))
    client = connect(pod)
    client.ready()

    since = pod.status().since
    eventually(lambda: time.time() - since > 2.0)
    assert sum(what == "is_scheduler_paused" for _, what in client.journal(1)) >= 4
    client.add(request("still here"))
    client.tokens("still here")


@pytest.mark.parametrize(
    ("failure", "deadline", "reason", "line"),
    [
        ("start", 60.0, "EngineExited", "stub: refusing to start"),
        ("load", 60.0, "EngineExited", "stub: cannot load the model: out of imagination"),
        ("stall", 3.0, "StartDeadline", "stub: 65 outputs"),
    ],
)
def test_a_failed_start_ends_with_its_reason(
    make_pod: MakePod, failure: str, deadline: float, reason: str, line: str
) -> None:
    pod = make_pod(
        "--fail", failure, ready=False,
        liveness=LivenessConfig(start_progress_deadline_seconds=deadline),
    )  # fmt: skip
    assert pod.process.wait(50) == 1
    assert f"engine lost: {reason}" in "\n".join(pod.log)
    assert line in pod.log


def test_a_start_that_shows_progress_may_take_its_time(make_pod: MakePod) -> None:
    pod = make_pod(
        "--load-seconds", "5", "--load-log", ready=False,
        liveness=LivenessConfig(start_progress_deadline_seconds=2.5),
    )  # fmt: skip
    status = pod.wait_ready().status()
    assert [record.phase for record in status.phases] == [
        "Starting",
        "Handshaking",
        "Loading",
        "Ready",
    ]
    times = [record.at for record in status.phases]
    assert times == sorted(times)
    assert times[3] - times[2] >= 5.0


def test_a_command_that_is_not_there_fails_with_its_name(make_pod: MakePod) -> None:
    config = stub_config()
    runtime = msgspec.structs.replace(config.runtime, command=["/no/such/engine"])
    with Pod(msgspec.structs.replace(config, runtime=runtime)) as pod:
        assert pod.process.wait(10) == 1
        assert "EngineNotStarted: cannot run /no/such/engine" in pod.tail()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"model": {"path": "org/name"}}, "model.vocab_size"),
        ({"name": ""}, "name:"),
        ({"transport": {"input_port": "five"}}, "transport.input_port"),
        ({"coordinator_address": "nowhere"}, "coordinator_address"),
        ({"transport": {"host": "no-interface"}}, "transport.host: cannot listen"),
        ({"transport": {"host": "198.51.100.1"}}, "transport.host: cannot listen"),
        ({"transport": {"host": "[::1]"}}, "without brackets"),
        ({"runtime": {"type": "custom", "command": ["a\0b"]}}, "runtime.command"),
    ],
)
def test_unusable_settings_end_the_process_with_the_field(
    changes: dict[str, Any], text: str
) -> None:
    config = msgspec.to_builtins(stub_config()) | changes
    _refused(config, text)


@pytest.mark.parametrize("field", ["input_port", "output_port", "http_port"])
def test_a_taken_port_is_named(make_pod: MakePod, field: str) -> None:
    taken = make_pod().input_port
    config = msgspec.to_builtins(stub_config())
    config["transport"][field] = taken
    _refused(config, f"transport.{field}: port {taken}", "give another port")


def test_a_socket_directory_with_a_long_name_is_refused(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    _refused(msgspec.to_builtins(stub_config()), "TMPDIR", TMPDIR=str(deep))
    assert list(deep.iterdir()) == []


def test_sigterm_lets_streams_finish(make_pod: MakePod, connect: Connect) -> None:
    pod = make_pod("--tokens", "40", "--token-seconds", "0.02")
    running, waiting = connect(pod), connect(pod)
    running.ready()
    waiting.ready()
    running.add(request("long", max_tokens=40))
    running.expect(EngineCoreOutputs)
    pod.terminate()
    assert waiting.expect(Draining).deadline_seconds > 50
    waiting.add(request("new"))
    refusal = waiting.expect(Reject)
    assert (refusal.code, refusal.request_id) == ("draining", "new")
    tokens, reason = running.tokens("long")
    assert (len(tokens), reason) == (39, FinishReason.LENGTH)
    assert pod.process.wait(10) == 0


def test_the_drain_deadline_aborts_what_is_left(make_pod: MakePod, connect: Connect) -> None:
    pod = make_pod(*ENDLESS, drain_deadline_seconds=0.3)
    client, watcher = streaming(connect, pod)
    pod.terminate()
    for number, each in enumerate((client, watcher)):
        assert each.tokens(f"stream-{number}")[1] is FinishReason.ABORT
    assert pod.process.wait(10) == 0


def test_a_second_signal_does_not_wait(make_pod: MakePod, connect: Connect) -> None:
    pod = make_pod(*ENDLESS)
    client = streaming(connect, pod, 1)[0]
    pod.terminate()
    client.expect(Draining)
    pod.terminate()
    assert client.tokens("stream-0")[1] is FinishReason.ABORT
    assert pod.process.wait(10) == 0


def test_sigterm_while_loading_stops(make_pod: MakePod, connect: Connect) -> None:
    pod = make_pod("--load-seconds", "60", ready=False)
    client = connect(pod)
    client.expect(PhaseChange)
    pod.terminate()
    client.until(lambda item: isinstance(item, PhaseChange) and item.phase == "Stopped")
    assert pod.process.wait(10) == 0


def test_the_operator_drains_and_the_pod_stays_to_be_seen(
    make_pod: MakePod, connect: Connect
) -> None:
    pod = make_pod("--tokens", "20", "--token-seconds", "0.02")
    client = connect(pod)
    client.ready()
    client.add(request("last", max_tokens=20))
    client.expect(EngineCoreOutputs)
    assert http(pod, "/drain", method="POST")[0] == 401
    assert http(pod, "/drain", method="POST", token="wrong")[0] == 401
    assert http(pod, "/drain", method="POST", token="\xff\xfe")[0] == 401
    assert http(pod, "/drain", method="POST", token=DRAIN_TOKEN)[0] == 202
    client.expect(Draining)
    assert http(pod, "/readyz")[0] == 503
    assert http(pod, "/healthz")[0] == 200
    client.tokens("last")
    eventually(lambda: (pod.status().phase, pod.status().in_flight) == ("Draining", 0))
    pod.terminate()
    assert pod.process.wait(5) == 0


def test_pages_follow_the_phase(make_pod: MakePod) -> None:
    pod = make_pod("--load-seconds", "1", ready=False)
    assert http(pod, "/healthz")[0] == 200
    assert http(pod, "/readyz")[0] == 503
    assert http(pod, "/drain", method="POST", token=DRAIN_TOKEN)[0] == 409
    pod.wait_ready()
    assert http(pod, "/readyz") == (200, "Ready EngineReady\n")
    code, text = http(pod, "/status")
    status = msgspec.json.decode(text, type=ServerStatus)
    assert code == 200
    assert (status.input_port, status.output_port) == (pod.input_port, pod.output_port)
    assert status.engine is not None
    assert (status.engine.max_model_len, status.engine.vocab_size) == (2048, 1000)
    assert status.log_tail[-1] == "stub: ready"


def test_metrics_count_what_happened(make_pod: MakePod, connect: Connect) -> None:
    pod = make_pod("--tokens", "5")
    client = connect(pod)
    client.ready()
    client.add(request("a", max_tokens=5, prompt_token_ids=[1, 2, 3]))
    client.tokens("a")
    labels = 'engine="0",model_name="stub"'
    assert sample(pod, f"vllm:prompt_tokens_total{{{labels}}}") == 3.0
    assert sample(pod, f"vllm:generation_tokens_total{{{labels}}}") == 5.0
    assert sample(pod, f"vllm:time_to_first_token_seconds_count{{{labels}}}") == 1.0
    assert sample(pod, f"vllm:inter_token_latency_seconds_count{{{labels}}}") == 4.0
    assert sample(pod, f"vllm:e2e_request_latency_seconds_count{{{labels}}}") == 1.0
    finished = 'engine="0",finished_reason="length",model_name="stub"'
    assert sample(pod, f"vllm:request_success_total{{{finished}}}") == 1.0
    assert sample(pod, "enginecore_server_clients") == 1.0
    assert sample(pod, 'enginecore_server_phase{phase="Ready"}') == 1.0


def test_the_engine_sees_no_settings_and_no_token(make_pod: MakePod) -> None:
    pod = make_pod("--print-environment", "ENGINECORE_DRAIN_TOKEN")
    assert "stub: null" in pod.log


def test_orphans_of_the_engine_are_reaped(make_pod: MakePod) -> None:
    pod = make_pod("--launcher")
    launcher, engine = pod.engine_processes()
    pod.terminate()
    assert pod.process.wait(15) == 0
    assert not _alive(launcher)
    assert not _alive(engine)


@pytest.mark.parametrize("options", [(), ("--launcher",)], ids=["engine alone", "launcher"])
def test_a_killed_server_takes_its_engine_with_it(
    make_pod: MakePod, options: tuple[str, ...]
) -> None:
    pod = make_pod(*options)
    below = pod.engine_processes()
    pod.process.kill()
    pod.process.wait(5)
    eventually(lambda: not any(alive(pid) for pid in below))


def test_both_address_families_are_served(make_pod: MakePod) -> None:
    transport = msgspec.structs.replace(LOOPBACK, host="*")
    pod = make_pod(transport=transport)
    for host in ("127.0.0.1", "::1"):
        for port in (pod.input_port, pod.output_port):
            with socket.create_connection((host, port), timeout=5) as connection:
                assert connection.recv(1) == b"\xff"
        with socket.create_connection((host, pod.http_port), timeout=5) as connection:
            connection.sendall(b"GET /readyz HTTP/1.0\r\n\r\n")
            assert b" 200 " in connection.recv(100)


def _alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def _refused(config: dict[str, Any], *texts: str, **environment: str) -> None:
    """Run a server that cannot start, and look for `texts` in its last words."""
    done = subprocess.run(
        [sys.executable, "-m", "enginecore_server"],
        env=os.environ | environment | {CONFIG_ENV: json.dumps(config)},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert all(text in done.stderr for text in texts), done.stderr
    assert "Traceback" not in done.stderr
