"""Engines that take their time, to start (C3) and at a step (C17): alive as long as they go on."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import msgspec
import pytest

from enginecore_wire.contract import LivenessConfig
from enginecore_wire.control import PhaseChange
from support.eventually import eventually
from support.pod import Pod, stub_config
from support.pod_pages import http
from support.raw_client import RawClient, request

DEADLINE = LivenessConfig(start_progress_deadline_seconds=4.0)
LONG_SECONDS = 7.0
"""Of a start: longer than the deadline."""

LOGS = (
    "for number in $(seq 14); do "
    'echo "INFO 11-30 22:10:09 [gpu_model_runner.py:1] Starting to load model /m: $number"; '
    "sleep 0.5; done"
)
COMPUTES = (
    f"{sys.executable} -c 'import time; "
    f"ends = time.monotonic() + {LONG_SECONDS}\nwhile time.monotonic() < ends: pass'"
)
HANGS = "echo '[core.py:1] Initializing a V1 LLM engine'; sleep 60"

Load = Callable[[str], Pod]


@pytest.fixture
def load() -> Iterator[Load]:
    """Return a function that starts a pod whose engine does something before it says HELLO."""
    with ExitStack() as stack:

        def make(before: str) -> Pod:
            config = stub_config(liveness=DEADLINE)
            command = ["sh", "-c", f'{before}\nexec "$@"', "loader", *config.runtime.command]
            runtime = msgspec.structs.replace(config.runtime, command=command)
            return stack.enter_context(Pod(msgspec.structs.replace(config, runtime=runtime)))

        yield make


@pytest.mark.parametrize("before", [LOGS, COMPUTES], ids=["log", "CPU time"])
def test_a_start_may_take_longer_than_the_deadline_while_it_goes_on(
    load: Load, before: str
) -> None:
    pod = load(before)
    pod.wait_ready()
    phases = pod.status().phases
    assert phases[-1].at - phases[0].at > DEADLINE.start_progress_deadline_seconds


def test_a_start_that_does_not_go_on_fails_with_what_it_was_doing(load: Load) -> None:
    pod = load(HANGS)
    assert pod.process.wait(30) == 1
    text = "engine lost: StartDeadline: no progress (handshake, log output, CPU time) for 4 s"
    assert f"{text} in phase Handshaking (StartingWorkers)" in "\n".join(pod.log)


def test_what_a_starting_engine_does_is_told(load: Load) -> None:
    pod = load(LOGS)
    with RawClient(pod.input_port, pod.output_port) as client:
        doing = ("Handshaking", "LoadingWeights")

        def told(message: Any) -> bool:
            return isinstance(message, PhaseChange) and (message.phase, message.reason) == doing

        client.until(told)
        status = pod.status()
        assert (status.phase, status.reason) == doing
        assert status.message == "the engine loads the model's weights"
        assert status.since < status.phases[-1].at, "the phase began before its step"
        client.ready(30)
    assert doing in [(record.phase, record.reason) for record in pod.status().phases]


def test_an_engine_that_blocks_for_less_than_the_step_deadline_lives(
    make_pod: Callable[..., Pod], connect: Callable[..., RawClient]
) -> None:
    pod = make_pod(
        "--tokens", "40", "--token-seconds", "0.02",
        liveness=LivenessConfig(step_deadline_seconds=20.0),
    )  # fmt: skip
    client = connect(pod)
    client.ready()
    client.add(request("compiles", max_tokens=40))
    engine = pod.engine_processes()[-1]
    os.kill(engine, signal.SIGSTOP)
    ends = time.monotonic() + LONG_SECONDS

    def healthy_so_far() -> bool:
        assert http(pod, "/healthz")[0] == 200
        assert http(pod, "/readyz")[0] == 200
        return time.monotonic() >= ends

    eventually(healthy_so_far, "the engine blocks", 30)
    os.kill(engine, signal.SIGCONT)
    tokens, _ = client.tokens("compiles")
    assert len(tokens) == 40
