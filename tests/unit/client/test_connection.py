"""One connection: its state table, its liveness, its outbox. No socket, no clock."""

import re

import msgspec
import pytest

from enginecore_client import EngineDeadError, ProtocolMismatchError
from enginecore_client._addresses.addresses import Endpoint
from enginecore_client._core.books import Outgoing
from enginecore_client._core.session import PodConnection
from enginecore_client._core.states import FINAL, TRANSITIONS, Channel, Move, State
from enginecore_wire.control import (
    Draining,
    Hello,
    PhaseChange,
    Ping,
    Pong,
    Ready,
    Reject,
    Replaced,
    Unknown,
)
from enginecore_wire.dialects import Dialect
from enginecore_wire.frames import decode_control, encode_control
from enginecore_wire.outputs import ENGINE_CORE_DEAD

NONCE = b"12345678"
ENDPOINT = Endpoint(0, "tcp://10.0.0.1:5557", "tcp://10.0.0.1:5558")
READY = Ready(nonce=NONCE, epoch=3)


def new() -> PodConnection:
    return PodConnection(1, ENDPOINT, b"r" * 16, Hello(nonce=NONCE, name="c"), 0.0, 0.8)


def hear(connection: PodConnection, message, now: float = 0.0) -> None:
    connection.receive(encode_control(message), now)


def flush(connection: PodConnection) -> list[tuple[Channel, object]]:
    """Return what leaves: control messages decoded, other messages by their type byte."""
    found: list[tuple[Channel, object]] = []
    while (item := connection.next_frames()) is not None:
        channel, frames = item
        control = frames[0][0] >= 0x80
        found.append((channel, decode_control(frames) if control else frames[0]))
        connection.sent()
    return found


def ready(now: float = 0.0) -> PodConnection:
    connection = new()
    for channel in Channel:
        connection.connected(channel, now)
    flush(connection)
    hear(connection, READY, now)
    assert connection.state is State.READY
    return connection


def test_every_state_has_its_row_and_ends_are_final() -> None:
    assert set(TRANSITIONS) == set(State)
    for state, row in TRANSITIONS.items():
        if state in FINAL:
            assert row == {}
        else:
            assert row[Move.GONE] is State.LOST
            assert row[Move.DIED] is State.DEAD


def test_no_state_is_a_trap() -> None:
    reachable = {State.CONNECTING}
    while True:
        more = {target for state in reachable for target in TRANSITIONS[state].values()}
        if more <= reachable:
            break
        reachable |= more
    assert reachable == set(State)


LIVES = [
    ("no socket", [], State.CONNECTING),
    ("one socket", ["up in"], State.CONNECTING),
    ("both sockets", ["up in", "up out"], State.HELLO),
    ("not ready", ["up in", "up out", PhaseChange("Loading")], State.LOADING),
    ("ready", ["up in", "up out", PhaseChange("Loading"), READY], State.READY),
    ("ready at once", ["up in", "up out", READY], State.READY),
    ("stranger's answer", ["up in", "up out", Ready(nonce=b"x")], State.HELLO),
    ("draining", ["up in", "up out", READY, Draining()], State.DRAINING),
    ("drain notice without READY", ["up in", "up out", Draining()], State.HELLO),
    ("input down", ["up in", "up out", READY, "down in"], State.CONNECTING),
    ("output down", ["up in", "up out", READY, "down out"], State.CONNECTING),
    ("back, no answer yet", ["up in", "up out", READY, "down in", "up in"], State.HELLO),
    ("back", ["up in", "up out", READY, "down in", "up in", READY], State.READY),
    (
        "back while draining",
        ["up in", "up out", READY, Draining(), "down in", "up in", PhaseChange("Draining")],
        State.DRAINING,
    ),
    (
        "another process loads",
        ["up in", "up out", READY, "down in", "up in", PhaseChange("Loading")],
        State.LOST,
    ),
    (
        "another process is ready",
        ["up in", "up out", READY, "down in", "up in", Ready(nonce=NONCE, epoch=4)],
        State.LOST,
    ),
    ("unknown", ["up in", "up out", READY, Unknown()], State.HELLO),
    ("unknown, then ready", ["up in", "up out", READY, Unknown(), READY], State.READY),
    ("replaced", ["up in", "up out", READY, Replaced("x")], State.LOST),
    ("other nonce", ["up in", "up out", READY, Pong(nonce=b"87654321")], State.LOST),
    ("own nonce", ["up in", "up out", READY, Pong(nonce=NONCE)], State.READY),
    ("dead", ["up in", "up out", READY, "dead"], State.DEAD),
    ("dead while loading", ["up in", "up out", PhaseChange("Loading"), "dead"], State.DEAD),
    ("nothing after death", ["up in", "up out", READY, "dead", READY, "down in"], State.DEAD),
    ("too new", ["up in", "up out", Ready(nonce=NONCE, protocol=9)], State.LOST),
    ("other layout", ["up in", "up out", Ready(nonce=NONCE, layout="Z")], State.LOST),
]


@pytest.mark.parametrize(
    ("steps", "state"), [life[1:] for life in LIVES], ids=[life[0] for life in LIVES]
)
def test_lives(steps, state: State) -> None:
    connection = new()
    channels = {"in": Channel.INPUT, "out": Channel.OUTPUT}
    for now, step in enumerate(steps):
        match step:
            case "dead":
                connection.receive([ENGINE_CORE_DEAD], now / 100)
            case str():
                way, name = step.split()
                move = connection.connected if way == "up" else connection.disconnected
                move(channels[name], now / 100)
            case _:
                hear(connection, step, now / 100)
    assert connection.state is state
    assert (connection.error is not None) is (state in FINAL)


@pytest.mark.parametrize(
    ("step", "kind"),
    [
        (Ready(nonce=NONCE, protocol=9), ProtocolMismatchError),
        (Ready(nonce=NONCE, layout="Z"), ProtocolMismatchError),
        (Ready(nonce=NONCE, layout="C", runtime_version="0.18.0"), ProtocolMismatchError),
        (Ready(nonce=NONCE, layout="A", runtime_version="0.10.2"), ProtocolMismatchError),
        (Replaced("grace ended"), EngineDeadError),
    ],
)
def test_why_it_ended(step, kind) -> None:
    connection = new()
    for channel in Channel:
        connection.connected(channel, 0.0)
    hear(connection, step)
    assert isinstance(connection.error, kind)


@pytest.mark.parametrize(
    ("layout", "version", "release"),
    [("C", "enginecore-torch-0.1.0", (0, 32)), ("C", "0.24.1", (0, 24, 1)),
     ("B", "0.19.0", (0, 19, 0)), ("A", "", (0, 16)), ("C", "0.40.0", (0, 32))],
)  # fmt: skip
def test_messages_are_those_of_the_engines_release(layout, version, release) -> None:
    connection = new()
    for channel in Channel:
        connection.connected(channel, 0.0)
    hear(connection, Ready(nonce=NONCE, layout=layout, runtime_version=version))
    assert connection.state is State.READY
    assert connection.dialect == Dialect(release)


def test_layout_and_version_that_contradict_are_both_named() -> None:
    connection = new()
    for channel in Channel:
        connection.connected(channel, 0.0)
    hear(connection, Ready(nonce=NONCE, layout="C", runtime_version="0.18.0"))
    assert "layout C of an engine that is vLLM 0.18.0 (layout B)" in str(connection.error)


def test_hello_goes_to_each_socket_as_it_comes_up() -> None:
    connection = new()
    connection.connected(Channel.INPUT, 0.0)
    ((channel, hello),) = flush(connection)
    assert channel is Channel.INPUT
    assert isinstance(hello, Hello)
    assert hello.nonce == NONCE
    connection.connected(Channel.OUTPUT, 0.0)
    assert [channel for channel, _ in flush(connection)] == [Channel.OUTPUT]
    connection.tick(0.5)
    assert flush(connection) == []
    connection.tick(1.1)
    assert [channel for channel, _ in flush(connection)] == list(Channel)


def test_hello_to_a_socket_that_went_down_is_dropped() -> None:
    connection = new()
    connection.connected(Channel.INPUT, 0.0)
    connection.disconnected(Channel.INPUT, 0.0)
    assert flush(connection) == []


def test_requests_wait_until_the_session_stands() -> None:
    connection = ready()
    connection.disconnected(Channel.INPUT, 1.0)
    connection.outbox.append(Outgoing([b"\x00", b"body"]))
    assert flush(connection) == []
    connection.connected(Channel.INPUT, 1.1)
    assert [type(message) for _, message in flush(connection)] == [Hello]
    hear(connection, READY, 1.2)
    assert flush(connection) == [(Channel.INPUT, b"\x00")]


def test_ping_period_and_no_pile_of_pings() -> None:
    connection = ready()
    times = []
    for tenth in range(35):
        hear(connection, Pong(nonce=NONCE), tenth / 10)
        connection.tick(tenth / 10)
        times += [tenth / 10 for _, m in flush(connection) if isinstance(m, Ping)]
    assert times == [1.0, 2.0, 3.0]
    for tenth in range(40, 70):
        hear(connection, Pong(nonce=NONCE), tenth / 10)
        connection.tick(tenth / 10)
    assert len(flush(connection)) == 1


def test_silence() -> None:
    connection = ready(10.0)
    connection.tick(13.9)
    assert connection.state is State.READY
    hear(connection, Pong(nonce=NONCE), 13.95)
    connection.tick(17.9)
    assert connection.state is State.READY
    connection.tick(18.0)
    assert connection.state is State.LOST
    assert "no message came from it for 4" in str(connection.error)


def test_a_break_that_lasts() -> None:
    connection = ready()
    connection.disconnected(Channel.OUTPUT, 5.0)
    connection.tick(5.7)
    assert connection.state is State.CONNECTING
    connection.tick(5.9)
    assert connection.state is State.LOST
    assert isinstance(connection.error, EngineDeadError)


def test_a_first_connection_may_take_its_time() -> None:
    connection = new()
    connection.connected(Channel.INPUT, 0.0)
    connection.disconnected(Channel.INPUT, 1.0)
    connection.tick(500.0)
    assert connection.state is State.CONNECTING


@pytest.mark.parametrize(
    ("prepare", "text"),
    [
        (lambda _: None, "Connecting, nobody answers there, for 9 s"),
        (lambda c: setattr(c, "name_error", "its name"), "its name"),
        (
            lambda c: [c.connected(ch, 4.0) for ch in Channel],
            r"HELLO was not answered \(are .* swapped, or .*\), for 5 s",
        ),
        (
            lambda c: [
                *(c.connected(ch, 4.0) for ch in Channel),
                hear(c, PhaseChange("Loading", "weights", 20.0), 5.0),
            ],
            r"phase Loading \(weights\) for 24 s",
        ),
        (
            lambda c: [
                *(c.connected(ch, 4.0) for ch in Channel),
                hear(c, Reject(code="too_many_clients", message="64 of 64"), 5.0),
            ],
            r"refused \(too_many_clients\): 64 of 64",
        ),
    ],
)
def test_description(prepare, text: str) -> None:
    connection = new()
    prepare(connection)
    assert connection.describe(9.0).startswith("tcp://10.0.0.1:5557: ")
    assert re.search(text, connection.describe(9.0))


@pytest.mark.parametrize("frames", [[b"\x81"], [b"\x81", b"\xc1"], [b"\x83", b"\x90"]])
def test_broken_control_messages_raise_and_change_nothing(frames) -> None:
    connection = ready()
    with pytest.raises(msgspec.DecodeError):
        connection.receive(frames, 1.0)
    assert connection.state is State.READY
    assert connection.received == 0


def test_only_engine_messages_count() -> None:
    connection = ready()
    connection.receive([b"\x8f", b"\x80"], 1.0)
    hear(connection, Pong(nonce=NONCE), 1.0)
    assert connection.received == 0
    for frames in ([b"\x99\x00"], [b"\x99\x00", b"aux"]):
        connection.receive(frames, 1.0)
    assert connection.received == 2
