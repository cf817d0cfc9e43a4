"""What the server makes of an engine that breaks its side of the protocol."""

import re
import time
from collections.abc import Callable

import pytest
import zmq

from enginecore_wire.outputs import ENGINE_CORE_DEAD, FinishReason
from support.eventually import eventually
from support.pod import Pod
from support.raw_client import RawClient, request

ScriptedPod = Callable[[str], Pod]
Connect = Callable[..., RawClient]


def unbroken(pod: Pod) -> None:
    """No exception got lost in the event loop."""
    assert "Traceback" not in "\n".join(pod.log)


@pytest.mark.parametrize("act", ["deep payload", "no length", "text length", "number as key"])
def test_a_ready_payload_that_is_none_ends_the_start(scripted_pod: ScriptedPod, act: str) -> None:
    pod = scripted_pod(act)
    assert pod.process.wait(10) == 1
    unbroken(pod)
    assert "HandshakeFailed: the engine's READY payload" in "\n".join(pod.log)


@pytest.mark.parametrize("act", ["ready twice", "reply twice"])
def test_what_is_said_twice_counts_once(
    scripted_pod: ScriptedPod, connect: Connect, act: str
) -> None:
    pod = scripted_pod(act).wait_ready()
    client = connect(pod)
    client.ready()
    client.call(5, "is_sleeping")
    assert client.answer(5) is False
    client.add(request("r"))
    assert client.tokens("r") == ([7], FinishReason.STOP)
    assert pod.status().in_flight == 0
    unbroken(pod)


def test_garbage_among_outputs_harms_nothing(scripted_pod: ScriptedPod, connect: Connect) -> None:
    pod = scripted_pod("garbage").wait_ready()
    client = connect(pod)
    client.ready()
    for name in ("first", "second"):
        client.add(request(name))
        assert client.tokens(name)[1] is FinishReason.STOP
    eventually(lambda: pod.status().in_flight == 0)
    unbroken(pod)


@pytest.mark.parametrize("act", ["dead goes on", "close one"])
def test_an_engine_half_dead_is_dead(scripted_pod: ScriptedPod, connect: Connect, act: str) -> None:
    pod = scripted_pod(act).wait_ready()
    client = connect(pod)
    client.ready()
    client.add(request("r"))
    client.until(lambda item: item == ENGINE_CORE_DEAD, 1.0)
    assert pod.process.wait(10) == 1
    unbroken(pod)


def test_an_orphan_that_prints_for_ever_does_not_hide_the_launchers_end(
    scripted_pod: ScriptedPod,
) -> None:
    started = time.monotonic()
    pod = scripted_pod("orphan prints")
    assert pod.process.wait(10) == 1
    assert time.monotonic() - started < 8.0
    assert "exited with code 3" in "\n".join(pod.log)


@pytest.mark.parametrize(
    "body", [b"\xc1", b"", b"\x81\xa6status\xa5HELLO", b"\x81\xa1x" + b"\x91" * 100_000]
)
def test_strangers_on_the_loopback_end_no_stream(
    scripted_pod: ScriptedPod, connect: Connect, body: bytes
) -> None:
    pod = scripted_pod("answer").wait_ready()
    started = next(found for line in pod.log if (found := re.search(r"py (\d+) answer", line)))
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        stranger = context.socket(zmq.DEALER)
        stranger.connect(f"tcp://127.0.0.1:{started[1]}")
        stranger.send(body)
        eventually(lambda: any("handshake socket was ignored" in line for line in pod.log))
    finally:
        context.destroy(linger=0)
    client = connect(pod)
    client.ready()
    client.add(request("r"))
    assert client.tokens("r") == ([7], FinishReason.STOP)
    unbroken(pod)
