"""The launcher's half of the handshake: who is answered, and what the others are told."""

import msgspec
import pytest

from enginecore_client._launch.desk import Desk, HandshakeRefusedError, Stage
from enginecore_wire.handshake import (
    HELLO,
    READY,
    EngineAddresses,
    EngineInit,
    EngineStatus,
    engine_identity,
)

ADDRESSES = EngineAddresses(["ipc://in"], ["ipc://out"], "ipc://ci", "ipc://co", "ipc://stats")


def desk(local: bool = False, ranks=(0, 1), **parallel: object) -> Desk:
    return Desk(dict.fromkeys(ranks, local), ADDRESSES, parallel)


def say(desk: Desk, rank: int, status: str, **fields: object) -> bytes | None:
    flags = {"local": False, "headless": True, **fields}
    message = msgspec.msgpack.encode(EngineStatus(status, **flags))
    said, answer = desk.receive(engine_identity(rank), message)
    assert said == rank
    return answer


def test_hello_gets_init_and_ready_ends_it() -> None:
    table = desk(data_parallel_size=2)
    answer = say(table, 1, HELLO)
    assert answer is not None
    init = msgspec.msgpack.decode(answer, type=EngineInit)
    assert init.addresses == ADDRESSES
    assert init.parallel_config == {"data_parallel_size": 2}
    assert table.stages == {0: Stage.NEW, 1: Stage.LOADING}
    assert say(table, 1, READY) is None
    assert table.stages == {0: Stage.NEW, 1: Stage.READY}
    say(table, 0, HELLO)
    say(table, 0, READY)
    assert set(table.stages.values()) == {Stage.READY}


def after(*statuses: str) -> Desk:
    table = desk()
    for status in statuses:
        say(table, 0, status)
    return table


HELLO_BODY = msgspec.msgpack.encode(EngineStatus(HELLO, local=False, headless=True))

REFUSED = [
    ("READY first", desk(), (0, READY, {}), r"'READY' of rank 0 is out of order: no HELLO yet", 0),
    ("READY twice", after(HELLO, READY), (0, READY, {}), "out of order: handshake done", 0),
    ("HELLO in use", after(HELLO, READY), (0, HELLO, {}), "whose engine is in use; give each", 0),
    ("unknown status", after(HELLO), (0, "FAILED", {}), "'FAILED' of rank 0 is out of order", 0),
    (
        "unknown rank",
        desk(),
        (2, HELLO, {}),
        r"rank 2 is not expected; expected are \[0, 1\]",
        None,
    ),
    ("local", desk(), (0, HELLO, {"local": True}), "local=True, headless=True; expected is", 0),
    ("headless", desk(True), (0, HELLO, {"local": True}), "expected is local=True, headless=F", 0),
]


@pytest.mark.parametrize(
    ("table", "message", "text", "rank"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED]
)
def test_refused(table: Desk, message, text: str, rank: int | None) -> None:
    sender, status, fields = message
    before = dict(table.stages)
    with pytest.raises(HandshakeRefusedError, match=text) as caught:
        say(table, sender, status, **fields)
    assert caught.value.rank == rank
    assert table.stages == before


@pytest.mark.parametrize(
    ("identity", "body", "text"),
    [
        (b"engine", HELLO_BODY, "656e67696e65 is not a rank in 2 bytes"),
        (b"", HELLO_BODY, "is not a rank"),
        (b"\x00\x00", b"", "unreadable handshake message"),
        (b"\x00\x00", b"\x93\x01", "unreadable handshake message"),
        (b"\x00\x00", b"\x81\xa6status" + 3000 * b"\x91", "unreadable handshake message"),
    ],
)
def test_garbage_is_refused(identity: bytes, body: bytes, text: str) -> None:
    with pytest.raises(HandshakeRefusedError, match=text):
        desk().receive(identity, body)


def test_engine_that_starts_again_while_loading_is_answered_again() -> None:
    table = after(HELLO)
    assert say(table, 0, HELLO) is not None
    assert say(table, 0, READY) is None


def test_next_engine_is_answered_once_the_one_before_is_gone() -> None:
    table = after(HELLO, READY)
    table.gone(0)
    assert table.stages[0] is Stage.NEW
    assert say(table, 0, HELLO) is not None
    table.gone(9)
    assert set(table.stages) == {0, 1}


def test_engines_with_other_options_are_refused() -> None:
    table = desk()
    for rank in (0, 1):
        say(table, rank, HELLO)
    say(table, 0, READY, parallel_config_hash="aa")
    with pytest.raises(HandshakeRefusedError, match=r"rank 1 .* than rank 0 \(bb and aa\)"):
        say(table, 1, READY, parallel_config_hash="bb")
    assert table.stages == {0: Stage.READY, 1: Stage.LOADING}
    table.gone(0)
    say(table, 1, READY, parallel_config_hash="bb")


def test_engines_that_say_no_hash_are_taken() -> None:
    table = desk()
    for rank in (0, 1):
        say(table, rank, HELLO)
        say(table, rank, READY)
    assert set(table.stages.values()) == {Stage.READY}
