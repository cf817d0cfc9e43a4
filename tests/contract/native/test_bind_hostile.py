"""Engines that dial in and send what is no output: nothing of it vanishes without a word."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import zmq

from enginecore_client import (
    FinishReason,
    LostOutputsError,
    OutputKind,
    ProtocolMismatchError,
    SamplingParams,
    SyncMPClient,
)
from enginecore_client._core.states import Channel
from enginecore_wire.handshake import engine_identity
from enginecore_wire.requests import RequestType
from support.eventually import eventually

PARAMS = SamplingParams(max_tokens=4, output_kind=OutputKind.DELTA)
PACK = msgspec.msgpack.encode


class RawEngine:
    """The two sockets of an engine of rank 0, and a test's own bytes on them."""

    def __init__(self, addresses: dict[str, str]) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._input = self._context.socket(zmq.DEALER)
        self._input.setsockopt(zmq.IDENTITY, engine_identity(0))
        self._input.connect(addresses["input_address"])
        self._output = self._context.socket(zmq.PUSH)
        self._output.connect(addresses["output_address"])
        self._input.send(PACK({"max_model_len": 100, "vllm_version": "0.32.0"}))

    def __enter__(self) -> "RawEngine":
        return self

    def __exit__(self, *exc: object) -> None:
        self._context.destroy(linger=0)

    def take(self) -> str:
        """Return the id of the next request."""
        while True:
            kind, body, *_ = self._input.recv_multipart()
            if kind == RequestType.ADD:
                request_id: str = msgspec.msgpack.decode(body)[0]
                return request_id

    def send(self, body: bytes) -> None:
        """Send what is, or is not, EngineCoreOutputs."""
        self._output.send(body)


def outputs(request_id: str, tokens: list[int], reason: int | None = None) -> list[Any]:
    return [0, [[request_id, tokens, None, None, None, reason]], None, 0.0]


@pytest.fixture
def engine(bound: dict[str, str]) -> Iterator[RawEngine]:
    with RawEngine(bound) as running:
        yield running


@pytest.fixture
def client(engine: RawEngine, bound: dict[str, str]) -> Iterator[SyncMPClient]:
    with SyncMPClient(bound, ready_timeout=30) as client:
        sockets: Any = client._driver._sockets

        def known() -> bool:
            engine.send(PACK([0, [], None, 0.0]))
            return sockets._peers[Channel.OUTPUT].ranks() == {0}

        eventually(known, "whose connection it is")
        yield client


@pytest.mark.parametrize(
    "body", [b"\xc1", b"", PACK({"a": 1}), PACK(None)], ids=["broken", "empty", "map", "nil"]
)
def test_garbage_of_a_known_connection_ends_what_its_engine_has(
    engine: RawEngine, client: SyncMPClient, body: bytes
) -> None:
    stream = client.generate([1, 2], PARAMS, deadline=30)
    name = engine.take()
    engine.send(PACK(outputs(name, [5])))
    assert next(stream).new_token_ids == [5]
    engine.send(body)
    engine.send(PACK(outputs(name, [6], 1)))
    with pytest.raises(LostOutputsError, match="could not be read"):
        next(stream)
    assert client._driver.core.unreadable == 1
    again = client.generate([1, 2], PARAMS, deadline=30)
    engine.send(PACK(outputs(engine.take(), [7], 1)))
    assert [output.finish_reason for output in again] == [FinishReason.LENGTH]


def test_a_rank_that_is_no_number_harms_its_own_message(
    engine: RawEngine, client: SyncMPClient
) -> None:
    first, second = (client.generate([1, 2], PARAMS, deadline=30) for _ in range(2))
    names = engine.take(), engine.take()
    engine.send(PACK(outputs(names[1], [5])))
    assert next(second).new_token_ids == [5]
    engine.send(PACK(["0", *outputs(names[0], [5])[1:]]))
    engine.send(PACK(outputs(names[1], [6], 1)))
    with pytest.raises(ProtocolMismatchError):
        next(first)
    assert next(second).finish_reason is FinishReason.LENGTH


def test_numbers_may_be_written_longer_than_they_need(
    engine: RawEngine, client: SyncMPClient
) -> None:
    stream = client.generate([1, 2], PARAMS, deadline=30)
    name = engine.take()
    engine.send(PACK(outputs(name, [5])))
    body = PACK(outputs(name, [6], 1))
    engine.send(b"\xdd\x00\x00\x00\x04\xce\x00\x00\x00\x00" + body[2:])
    assert [output.new_token_ids for output in stream] == [[5], [6]]
