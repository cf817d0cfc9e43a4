"""The server's half of vLLM's handshake."""

import msgspec
import pytest

from enginecore_server.handshake import Handshake, HandshakeError, HandshakeStep
from enginecore_wire.handshake import EngineAddresses, EngineInit, EngineStatus

ADDRESSES = EngineAddresses(["ipc:///x/in"], ["ipc:///x/0", "ipc:///x/1"])
HELLO = msgspec.msgpack.encode(EngineStatus("HELLO", local=False, headless=True))
READY = msgspec.msgpack.encode(EngineStatus("READY", local=False, headless=True))
RANK_0, RANK_1 = b"\x00\x00", b"\x01\x00"


def test_hello_gets_the_addresses_then_ready_ends_it() -> None:
    handshake = Handshake(ADDRESSES)
    answer = handshake.receive(RANK_0, HELLO)
    assert answer is not None
    assert msgspec.msgpack.decode(answer, type=EngineInit) == EngineInit(ADDRESSES, {})
    assert handshake.receive(RANK_0, READY) is None
    assert handshake.step is HandshakeStep.READY


@pytest.mark.parametrize("identity", [RANK_0, RANK_1, b"\x07\x01"])
def test_any_rank_is_taken_as_it_is(identity: bytes) -> None:
    handshake = Handshake(ADDRESSES)
    handshake.receive(identity, HELLO)
    assert handshake.identity == identity


def test_hello_may_repeat_before_ready() -> None:
    handshake = Handshake(ADDRESSES)
    assert handshake.receive(RANK_0, HELLO) == handshake.receive(RANK_0, HELLO)


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([(RANK_0, READY)], "while the handshake is waiting"),
        ([(RANK_0, HELLO), (RANK_1, HELLO)], "data parallel size 1"),
        ([(RANK_0, HELLO), (RANK_0, READY), (RANK_0, HELLO)], "while the handshake is ready"),
        ([(RANK_0, b"\xc1")], "unreadable"),
        ([(RANK_0, b"\x80")], "unreadable"),
        ([(b"\x00abcd", HELLO)], "not a rank"),
    ],
)
def test_what_does_not_fit_is_an_error(messages: list[tuple[bytes, bytes]], text: str) -> None:
    handshake = Handshake(ADDRESSES)
    *earlier, last = messages
    for message in earlier:
        handshake.receive(*message)
    with pytest.raises(HandshakeError, match=text):
        handshake.receive(*last)
