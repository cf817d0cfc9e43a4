"""Hellos, slots, reconnects and departures, frame by frame."""

import os
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from enginecore_wire.control import (
    Bye,
    Draining,
    PhaseChange,
    Pong,
    Ready,
    Reject,
    Replaced,
    Unknown,
)
from enginecore_wire.frames import encode_control
from enginecore_wire.outputs import EngineCoreOutputs
from support.eventually import eventually
from support.pod import LOOPBACK, Pod
from support.pod_pages import short
from support.raw_client import RawClient, request

MakePod = Callable[..., Pod]
Connect = Callable[..., RawClient]

ONE_SLOT = msgspec.structs.replace(LOOPBACK, max_clients=1)
SLOW = ("--tokens", "100000", "--token-seconds", "0.01", "--max-model-len", "200000")


@pytest.mark.parametrize("order", ["input first", "output first"])
def test_ready_comes_when_both_hellos_are_there(
    make_pod: MakePod, connect: Connect, order: str
) -> None:
    client = connect(make_pod(), hello=False)
    first, second = client.input, client.output
    if order == "output first":
        first, second = second, first
    client.hello_on(first)
    assert client.receive(0.3) is None
    client.hello_on(second)
    assert isinstance(client.receive(), Ready)


def test_ready_says_what_a_client_needs(make_pod: MakePod, connect: Connect) -> None:
    pod = make_pod("--max-model-len", "512", rank=3, epoch=7, name="smollm-3")
    client = connect(pod)
    ready = client.ready()
    assert (ready.name, ready.rank, ready.epoch, ready.slot) == ("smollm-3", 3, 7, 1)
    assert (ready.protocol, ready.layout, ready.nonce) == (1, "C", client.nonce)
    assert (ready.live_clients, ready.outputs_sent, ready.requests) == (1, 0, [])
    assert (ready.vocab_size, ready.model_name, ready.runtime) == (1000, "stub", "custom")
    assert ready.runtime_version == "0.32.0"
    assert ready.engine["max_model_len"] == 512
    assert ready.limits.prompt_tokens == 512
    assert ready.timers.grace_seconds == pod.config.liveness.grace_seconds


def test_phases_are_told_while_the_engine_loads(make_pod: MakePod, connect: Connect) -> None:
    pod = make_pod("--load-seconds", "1", ready=False)
    client = connect(pod)
    first = client.expect(PhaseChange)
    assert first.phase in ("Handshaking", "Loading")
    client.add(request("early"))
    refusal = client.expect(Reject)
    assert (refusal.code, refusal.request_id) == ("not_ready", "early")
    assert client.ready().slot == 1


def test_a_repeated_hello_is_answered_with_the_state_of_the_session(
    make_pod: MakePod, connect: Connect
) -> None:
    client = connect(make_pod(*SLOW))
    client.ready()
    client.add(request("long", max_tokens=10000))
    client.expect(EngineCoreOutputs)
    client.hello_on(client.input)
    ready = client.ready()
    assert ready.slot == 1
    assert ready.requests == ["long"]
    assert ready.outputs_sent == client.outputs_received


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"protocol": 99, "protocol_minimum": 50}, "protocol_mismatch"),
        ({"protocol": 0, "protocol_minimum": 0}, "protocol_mismatch"),
        ({"layouts": ("A", "Z")}, "protocol_mismatch"),
        ({"layouts": ()}, "protocol_mismatch"),
        ({"nonce": b""}, "invalid_request"),
        ({"nonce": b"123456789"}, "invalid_request"),
    ],
)
def test_hellos_that_do_not_fit_are_refused(
    make_pod: MakePod, connect: Connect, fields: dict[str, Any], code: str
) -> None:
    client = connect(make_pod(), hello=False)
    client.hello(**fields)
    assert client.expect(Reject).code == code
    client.hello()
    assert client.ready().slot == 1


def test_a_newer_client_gets_the_version_both_speak(make_pod: MakePod, connect: Connect) -> None:
    client = connect(make_pod(), hello=False)
    client.hello(protocol=9, protocol_minimum=1, layouts=("D", "C"))
    ready = client.ready()
    assert (ready.protocol, ready.layout) == (1, "C")


def test_another_nonce_does_not_take_a_session(make_pod: MakePod, connect: Connect) -> None:
    pod = make_pod(*SLOW)
    owner = connect(pod)
    owner.ready()
    owner.hello(nonce=os.urandom(8))
    owner.expect(Replaced)
    owner.hello()
    assert owner.ready().slot == 1
    assert pod.status().clients == 1


@pytest.mark.parametrize(
    "body",
    [b"", b"\xc1", b"\x90", b"\x81\xa1x" + b"\x91" * 100_000, b"\x81\xa5nonce\xa812345678"],
    ids=["empty", "garbage", "array", "deep", "nonce of text"],
)
@pytest.mark.parametrize("side", ["input", "output"])
def test_hellos_that_cannot_be_read_are_refused(
    make_pod: MakePod, connect: Connect, side: str, body: bytes
) -> None:
    pod = make_pod()
    client = connect(pod, hello=False)

    def refused() -> bool:
        client.send_on(getattr(client, side), [b"\x80", body])
        answer = client.receive(0.2)
        return isinstance(answer, Reject) and answer.code == "invalid_request"

    eventually(refused)
    client.hello()
    assert client.ready().slot == 1
    assert "Traceback" not in "\n".join(pod.log)


def test_a_mismatch_is_told_in_few_words(make_pod: MakePod, connect: Connect) -> None:
    client = connect(make_pod(), hello=False)
    client.hello(layouts=("A" * 1000,) * 500)
    assert len(client.expect(Reject).message) < 1000


@pytest.mark.parametrize("kind", [b"\x00", b"\x01", b"\x03", b"\x82", b"\x77"])
def test_who_has_not_said_hello_is_told_so(
    make_pod: MakePod, connect: Connect, kind: bytes
) -> None:
    client = connect(make_pod(), hello=False)
    client.hello_on(client.output)

    def told() -> bool:
        client.send(kind, b"\x80")
        answer = client.receive(0.2)
        return isinstance(answer, Unknown) and answer.type == kind[0]

    eventually(told)
    client.hello()
    client.ready()


def test_pong_counts_what_was_sent(make_pod: MakePod, connect: Connect) -> None:
    client, other = (connect(pod) for pod in [make_pod("--tokens", "5")] for _ in range(2))
    client.ready()
    other.ready()
    client.add(request("counted"))
    client.tokens("counted")
    client.ping(41)
    pong = client.expect(Pong)
    assert (pong.sequence, pong.outputs_sent, pong.nonce) == (41, 5, client.nonce)
    assert pong.live_clients == 2


def test_all_slots_taken(make_pod: MakePod, connect: Connect) -> None:
    pod = make_pod(transport=ONE_SLOT)
    first = connect(pod)
    first.ready()
    second = connect(pod)
    assert second.expect(Reject).code == "too_many_clients"
    first.send(*encode_control(Bye()))
    eventually(lambda: pod.status().clients == 0)

    def retried() -> bool:
        second.hello()
        return isinstance(second.receive(0.2), Ready)

    eventually(retried)


@pytest.mark.parametrize("side", ["input", "output", "both"])
def test_a_broken_connection_comes_back_within_grace(
    make_pod: MakePod, connect: Connect, side: str
) -> None:
    pod = make_pod(*SLOW, liveness=short(grace_seconds=5.0))
    client = connect(pod)
    slot = client.ready().slot
    client.add(request("kept", max_tokens=100_000))
    client.expect(EngineCoreOutputs)
    ports = {"input": [pod.input_port], "output": [pod.output_port]}
    for port in ports.get(side, [pod.input_port, pod.output_port]):
        client.cut(port)
    client.hello()
    ready = client.ready()
    assert (ready.slot, ready.requests) == (slot, ["kept"])
    client.expect(EngineCoreOutputs)
    client.ping(1)
    assert client.expect(Pong).outputs_sent >= client.outputs_received - 1


def test_a_vanished_client_is_aborted_after_grace(make_pod: MakePod, connect: Connect) -> None:
    pod = make_pod(*SLOW, liveness=short(grace_seconds=0.5))
    watcher = connect(pod)
    watcher.ready()
    gone = connect(pod)
    gone.ready()
    gone.add(request("orphan", max_tokens=100_000))
    gone.expect(EngineCoreOutputs)
    gone.close()
    assert ["abort", ["orphan"]] not in watcher.journal(1)
    eventually(lambda: pod.status().clients == 1)
    eventually(lambda: pod.status().in_flight == 0)
    assert ["abort", ["orphan"]] in watcher.journal(2)


def test_a_given_up_session_is_told_so(make_pod: MakePod, connect: Connect) -> None:
    pod = make_pod(liveness=short(grace_seconds=0.05))
    client = connect(pod)
    client.ready()
    client.cut(pod.input_port)
    eventually(lambda: pod.status().clients == 0)
    client.hello()
    client.expect(Replaced)


def test_goodbye_aborts_at_once(make_pod: MakePod, connect: Connect) -> None:
    pod = make_pod(*SLOW, liveness=short(grace_seconds=30.0))
    watcher, leaver = connect(pod), connect(pod)
    watcher.ready()
    leaver.ready()
    leaver.add(request("left", max_tokens=100_000))
    leaver.expect(EngineCoreOutputs)
    leaver.send(*encode_control(Bye()))
    eventually(lambda: pod.status().clients == 1)
    assert ["abort", ["left"]] in watcher.journal(1)


def test_a_slot_never_brings_its_next_owner_an_old_output(
    make_pod: MakePod, connect: Connect
) -> None:
    pod = make_pod("--tokens", "100000", "--max-model-len", "200000", transport=ONE_SLOT)
    for turn in range(15):
        client = connect(pod, hello=False)

        def greeted(client: RawClient = client) -> Any:
            client.hello()
            message = client.receive(0.5)
            assert not isinstance(message, EngineCoreOutputs)
            return isinstance(message, Ready)

        eventually(greeted)
        client.add(request(f"turn-{turn}", max_tokens=100_000))
        for _ in range(50):
            message = client.receive()
            if isinstance(message, EngineCoreOutputs):
                assert {output.request_id for output in message.outputs} == {f"turn-{turn}"}
        client.send(*encode_control(Bye()))


def test_an_aborted_id_can_be_used_again_and_brings_only_new_tokens(
    make_pod: MakePod, connect: Connect
) -> None:
    client = connect(make_pod("--tokens", "4"))
    client.ready()
    for turn in range(50):
        client.add(request("same", prompt_token_ids=[turn], max_tokens=4))
        client.abort("same")
        client.add(request("same", prompt_token_ids=[500 + turn], max_tokens=4))
        while True:
            message = client.until(lambda item: isinstance(item, EngineCoreOutputs | Reject))
            if isinstance(message, Reject):
                assert message.code == "duplicate_request_id"
                client.add(request("same", prompt_token_ids=[500 + turn], max_tokens=4))
                continue
            tokens = {token for output in message.outputs for token in output.new_token_ids}
            if message.outputs[-1].finish_reason is not None and tokens == {500 + turn}:
                break
            assert tokens <= {turn, 500 + turn}


def test_hello_while_draining_gets_ready_and_the_drain(make_pod: MakePod, connect: Connect) -> None:
    pod = make_pod()
    pod.drain()
    client = connect(pod)
    client.ready()
    client.expect(Draining)
    client.add(request("late"))
    assert client.expect(Reject).code == "draining"


def test_clients_that_leave_with_their_hello_keep_no_slot(
    make_pod: MakePod, connect: Connect
) -> None:
    """A HELLO may be read after its connection has ended, which nothing would tell any more."""
    pod = make_pod(transport=ONE_SLOT)
    for _ in range(40):
        client = connect(pod)
        for socket in (client.input, client.output):
            socket.close(linger=500)

    def free() -> bool:
        last = connect(pod)
        answer = last.receive()
        last.close()
        return isinstance(answer, Ready)

    eventually(free, "the slot is free")
