"""CURVE on the exposed sockets: who gets in, as what, and what a thief gets (C9)."""

import http.client
import re
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from enginecore_curve.keys import KeyPair, connect_curve, new_key_pair
from enginecore_wire.contract import LivenessConfig
from enginecore_wire.control import Hello, Reject, Unknown
from enginecore_wire.frames import encode_control
from enginecore_wire.outputs import EngineCoreOutputs, FinishReason
from support.eventually import eventually
from support.keys import PodKeys
from support.pod import Pod, stub_config
from support.raw_client import RawClient, request

from .conftest import Connect, MakePod

PATIENT = LivenessConfig(grace_seconds=5.0)
SILENCE_MS = 700
"""Long enough for whatever a pod would send: it answers HELLO within milliseconds."""


@pytest.fixture
def keys(tmp_path: Path) -> PodKeys:
    return PodKeys(tmp_path)


@pytest.fixture
def pod(make_pod: MakePod, keys: PodKeys) -> Pod:
    return make_pod(
        "--token-seconds",
        "0.002",
        "--tokens",
        "3000",
        "--max-model-len",
        "9000",
        transport=keys.transport,
        liveness=PATIENT,
    )


@pytest.fixture
def enter(connect: Connect, keys: PodKeys) -> Connect:
    """Return a function that connects with a key pair."""

    def opened(pod: Pod, pair: KeyPair, **options: Any) -> RawClient:
        return connect(pod, keys=(pair, keys.server.public), **options)

    return opened


def refused(pod: Pod) -> dict[str, float]:
    """Return how many connections were refused, by reason."""
    pattern = r'enginecore_server_refused_connections_total\{.*reason="(\w+)"\} (\S+)'
    return {reason: float(count) for reason, count in re.findall(pattern, pod.metrics())}


def impostors(pod: Pod) -> float:
    (count,) = re.findall(r"enginecore_server_impostors_total\{.*\} (\S+)", pod.metrics())
    return float(count)


def test_each_role_may_do_what_it_is_for(pod: Pod, keys: PodKeys, enter: Connect) -> None:
    infer, admin = enter(pod, keys.infer), enter(pod, keys.admin)
    infer.ready()
    admin.ready()
    infer.add(request("mine", max_tokens=3))
    assert infer.tokens("mine")[1] == FinishReason.LENGTH
    infer.call(1, "reset_prefix_cache")
    reject = infer.expect(Reject)
    assert (reject.code, reject.call_id, reject.field) == ("not_permitted", 1, "method")
    admin.call(2, "reset_prefix_cache")
    admin.answer(2)
    infer.call(3, "is_sleeping")
    infer.answer(3)


def test_without_a_key_nothing_comes_back(pod: Pod, connect: Connect) -> None:
    stranger = connect(pod, hello=False)
    for socket in (stranger.input, stranger.output):
        monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        assert not monitor.poll(SILENCE_MS // 2), "let in"
        socket.disable_monitor()
        monitor.close()
    assert not stranger.output.poll(SILENCE_MS)
    counts = refused(pod)
    assert counts["mechanism"] + counts["broken_off"] >= 2


@pytest.mark.parametrize("side", ["input_port", "output_port"])
def test_what_is_no_zmq_gets_nothing_but_the_greeting(pod: Pod, side: str) -> None:
    before = refused(pod)
    browser = http.client.HTTPConnection("127.0.0.1", getattr(pod, side), timeout=5)
    browser.request("GET", "/")
    with suppress(OSError, http.client.HTTPException):
        browser.getresponse()
    browser.close()
    eventually(lambda: sum(refused(pod).values()) > sum(before.values()), "counted")


def test_a_key_that_is_not_listed_is_refused(pod: Pod, enter: Connect) -> None:
    client = enter(pod, new_key_pair(), hello=False)
    assert not client.input.poll(SILENCE_MS, zmq.POLLOUT)
    assert not client.output.poll(0)
    assert refused(pod)["unknown_key"] == 2


def test_a_crowd_of_refused_keys_disturbs_nobody(
    pod: Pod, keys: PodKeys, enter: Connect, connect: Connect
) -> None:
    client = enter(pod, keys.infer)
    client.ready()
    client.add(request("amid", max_tokens=1000))
    client.expect(EngineCoreOutputs)
    crowd = 200
    with zmq.Context() as context, ExitStack() as stack:
        for number in range(crowd):
            socket = stack.enter_context(context.socket(zmq.DEALER))
            socket.linger = 0
            if number % 2:
                connect_curve(socket, new_key_pair(), keys.server.public)
            socket.connect(f"tcp://127.0.0.1:{pod.output_port if number % 4 else pod.input_port}")
        assert client.tokens("amid")[1] == FinishReason.LENGTH
        assert client.outputs_received == 1000
        eventually(lambda: refused(pod)["unknown_key"] == crowd // 2, "each counted once")
    connect(pod, keys=(keys.admin, keys.server.public)).ready()


def test_a_server_with_another_key_is_not_spoken_to(
    pod: Pod, keys: PodKeys, connect: Connect
) -> None:
    client = connect(pod, keys=(keys.infer, new_key_pair().public), hello=False)
    assert not client.input.poll(SILENCE_MS, zmq.POLLOUT)
    assert refused(pod)["wrong_server_key"] >= 1


def test_a_broken_session_returns_with_its_stream(pod: Pod, keys: PodKeys, enter: Connect) -> None:
    """The name of a broken connection is free again before its client comes back."""
    client = enter(pod, keys.infer)
    slot = client.ready().slot
    client.add(request("long", max_tokens=2000))
    client.expect(EngineCoreOutputs)
    for _ in range(5):
        for port in (pod.output_port, pod.input_port):
            client.cut(port)
        client.hello()
        ready = client.ready()
        assert (ready.slot, ready.requests) == (slot, ["long"])
    assert client.tokens("long")[1] == FinishReason.LENGTH


class Thief:
    """A client that uses another one's routing id and nonce, with a key of its own."""

    def __init__(self, enter: Connect, pod: Pod, pair: KeyPair, victim: RawClient) -> None:
        self.client = enter(pod, pair, identity=victim.identity, nonce=victim.nonce, hello=False)
        for socket in (self.client.input, self.client.output):
            assert socket.poll(5000, zmq.POLLOUT), "not let in"

    @property
    def loot(self) -> list[Any]:
        """What came that is more than the word that nobody knows it."""
        came = iter(lambda: self.client.receive(SILENCE_MS / 1000), None)
        return [message for message in came if not isinstance(message, Unknown)]


def test_a_stream_cannot_be_stolen(pod: Pod, keys: PodKeys, enter: Connect) -> None:
    victim = enter(pod, keys.admin)
    victim.ready()
    victim.add(request("secret", max_tokens=1500))
    victim.expect(EngineCoreOutputs)
    thief = Thief(enter, pod, keys.infer, victim)
    assert thief.loot == []
    thief.client.hello()
    thief.client.add(request("as-admin"))
    thief.client.abort("secret")
    assert thief.loot == []
    assert victim.tokens("secret")[1] == FinishReason.LENGTH
    assert victim.outputs_received == 1500, "the thief got some"
    victim.call(10, "collective_rpc", "journal")
    assert "as-admin" not in str(victim.answer(10))


def test_a_stream_cannot_be_stolen_while_its_connection_is_broken(
    pod: Pod, keys: PodKeys, enter: Connect
) -> None:
    victim = enter(pod, keys.admin)
    victim.ready()
    victim.add(request("secret", max_tokens=2900))
    victim.expect(EngineCoreOutputs)
    victim.close()
    thief = Thief(enter, pod, keys.infer, victim)
    assert thief.loot == []
    assert impostors(pod) == 0
    thief.client.add(request("as-admin"))
    thief.client.hello()
    assert thief.loot == []
    assert impostors(pod) > 0
    assert pod.status().clients == 1
    admin = enter(pod, keys.admin)
    admin.ready()
    admin.call(1, "collective_rpc", "journal")
    assert "as-admin" not in str(admin.answer(1))


@pytest.mark.parametrize(
    "frames",
    [[b"\x80", b"no map"], encode_control(Hello(protocol=99, protocol_minimum=99, nonce=b"n" * 8))],
    ids=["unreadable", "another protocol"],
)
def test_a_hello_under_anothers_name_is_not_answered_to_its_owner(
    pod: Pod, keys: PodKeys, enter: Connect, frames: list[bytes]
) -> None:
    """The owner's input connection is broken, so that the name is free there; it hears all answers
    on its output."""
    victim = enter(pod, keys.admin)
    victim.ready()
    victim.input.close(linger=0)
    eventually(lambda: not pod.status().sessions[0].connected, "the pod has noticed")

    def heard() -> bool:
        thief = enter(pod, keys.infer, identity=victim.identity, hello=False)
        for _ in range(20):
            thief.send(*frames)
        came = thief.input.get_monitor_socket(zmq.EVENT_DISCONNECTED).poll(SILENCE_MS)
        thief.close()
        return bool(came)

    eventually(heard, "the thief was cut off")
    came = list(iter(lambda: victim.receive(SILENCE_MS / 1000), None))
    assert [message for message in came if isinstance(message, Reject)] == []
    assert impostors(pod) > 0
    assert pod.tail().count("used the routing id of client") == 1


def test_keys_change_under_load_and_no_request_is_lost(
    pod: Pod, keys: PodKeys, enter: Connect
) -> None:
    old, new = keys.infer, new_key_pair()
    first = enter(pod, old)
    first.ready()
    first.add(request("before", max_tokens=500))
    keys.clients.write(infer=[old, new], admin=[keys.admin])
    second = enter(pod, new)
    second.ready()
    second.add(request("after", max_tokens=500))
    assert first.tokens("before")[1] == FinishReason.LENGTH
    first.add(request("last", max_tokens=5))
    assert first.tokens("last")[1] == FinishReason.LENGTH
    keys.clients.write(infer=[new], admin=[keys.admin])
    eventually(lambda: pod.status().clients == 1, "the old key is cut off")
    assert second.tokens("after")[1] == FinishReason.LENGTH
    late = enter(pod, old, hello=False)
    assert not late.input.poll(SILENCE_MS, zmq.POLLOUT)


def test_a_role_changes_with_the_list(pod: Pod, keys: PodKeys, enter: Connect) -> None:
    client = enter(pod, keys.infer)
    client.ready()
    keys.clients.write(infer=[], admin=[keys.admin, keys.infer])
    asked = iter(range(1, 1000))

    def allowed() -> bool:
        client.call(next(asked), "reset_prefix_cache")
        answer = client.until(
            lambda item: (
                isinstance(item, Reject)
                or (isinstance(item, EngineCoreOutputs) and item.utility_output is not None)
            )
        )
        return not isinstance(answer, Reject)

    eventually(allowed, "the role is that of the new list")


def test_a_list_that_cannot_be_read_changes_nothing(
    pod: Pod, keys: PodKeys, enter: Connect
) -> None:
    keys.clients.write_text(infer="no key\n")
    eventually(lambda: "line 1: expected a public key" in pod.tail(), "said")
    client = enter(pod, keys.infer)
    client.ready()


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"secret_key_file": "/nowhere"}, "cannot read the secret key in /nowhere"),
        ({"secret_key_file": ""}, "transport.secret_key_file: must not be empty"),
        ({"clients_directory": "/nowhere"}, "/nowhere has no file infer or admin"),
        ({"security": "None"}, "transport.secret_key_file: given, allowed: only with"),
    ],
)
def test_wrong_keys_are_named_and_end_the_start(
    keys: PodKeys, wrong: dict[str, str], text: str
) -> None:
    transport = msgspec.structs.replace(keys.transport, **wrong)
    with pytest.raises(AssertionError, match=text):
        Pod(stub_config(transport=transport))
