"""Large buffers on their way: alive until ZMQ has sent them, known as long, and gone after."""

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest

from enginecore_client import EngineCoreRequest, SamplingParams, SyncMPClient
from enginecore_wire.tensors import Tensor
from support.eventually import eventually
from support.protocol_peer import ProtocolPeer
from support.tcp_gate import TcpGate

pytestmark = pytest.mark.may_leak(
    "threads", "sockets", reason="pyzmq frees buffers in one thread that it never ends"
)

MIB = 1 << 20
WIDTH = 1024
ROWS = 2048  # of float32: 8 MiB


class Rows(np.ndarray):  # type: ignore[type-arg]
    """An array that can be referred to weakly."""


@pytest.fixture
def peer() -> Iterator[ProtocolPeer]:
    with ProtocolPeer() as running:
        assert running.ready is not None
        running.ready = msgspec.structs.replace(running.ready, hidden_size=WIDTH)
        running.streaming = False
        yield running


def rows(value: float) -> Any:
    return np.full((ROWS, WIDTH), value, dtype=np.float32).view(Rows)


def request(name: str, embeds: Any) -> EngineCoreRequest:
    return EngineCoreRequest(
        name, None, sampling_params=SamplingParams(max_tokens=1), prompt_embeds=Tensor.of(embeds)
    )


def arrived(peer: ProtocolPeer) -> list[float]:
    """Return the value of each tensor that came, all of whose items are the same."""
    found = []
    with peer.lock:
        for add in peer.adds:
            assert add.prompt_embeds is not None
            values = np.unique(add.prompt_embeds.numpy())
            found.append(float(values[0]) if len(values) == 1 else float("nan"))
    return found


def test_a_buffer_lives_until_it_was_sent(peer: ProtocolPeer) -> None:
    with TcpGate(peer.ports[0]) as gate:
        addresses = {**peer.addresses, "input_address": gate.address}
        with SyncMPClient(addresses) as client:
            assert len(client.pending_messages) == 0
            gate.hold()
            kept = []
            for number in range(3):
                embeds = rows(number)
                kept.append(weakref.ref(embeds))
                client.add_request(request(str(number), embeds))
                del embeds
            eventually(lambda: len(client.pending_messages) == 3, "all are with ZMQ")
            gc.collect()
            assert all(each() is not None for each in kept)
            assert peer.adds == []
            gate.release()
            eventually(lambda: len(client.pending_messages) == 0, "all were sent")
            eventually(lambda: all(each() is None for each in kept), "nobody keeps them")
            eventually(lambda: len(peer.adds) == 3, "all came")
            assert arrived(peer) == [0.0, 1.0, 2.0]


def test_what_is_small_is_not_tracked(peer: ProtocolPeer) -> None:
    with TcpGate(peer.ports[0]) as gate:
        addresses = {**peer.addresses, "input_address": gate.address}
        with SyncMPClient(addresses) as client:
            gate.hold()
            client.add_request(request("small", np.zeros((8, WIDTH), np.float32)))
            client.add_request(
                EngineCoreRequest("none", [1] * 4000, sampling_params=SamplingParams(max_tokens=1))
            )
            assert len(client.pending_messages) == 0
            gate.release()
            eventually(lambda: len(peer.adds) == 2, "both came")


def test_fault_35191_memory_is_flat_after_many_large_sends(peer: ProtocolPeer) -> None:
    process = psutil.Process()
    with SyncMPClient(peer.addresses) as client:

        def send(count: int) -> None:
            for number in range(count):
                client.add_request(request(str(number), rows(number)))
                eventually(lambda: len(peer.adds) == 1, "it came")
                client.abort_requests([str(number)])
                with peer.lock:
                    peer.adds.clear()

        def settled() -> int:
            eventually(lambda: len(client.pending_messages) == 0)
            gc.collect()
            return process.memory_info().rss

        send(20)
        before = settled()
        send(200)
        assert settled() - before < 48 * MIB
