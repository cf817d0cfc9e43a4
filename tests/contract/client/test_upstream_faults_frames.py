"""Faults that users of vLLM met, held from here: frames, tensors and what must never be unpickled.

The number in a test's name is its row in docs/upstream-faults.md.
"""

import pickle
import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq

from enginecore_client import (
    AsyncMPClient,
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    LostOutputsError,
    ProtocolMismatchError,
    RequestRejectedError,
    SyncMPClient,
)
from enginecore_client._sockets.own_key import OwnKey
from enginecore_client._sockets.pairs import Pair
from enginecore_client.zmq_sockets import make_zmq_socket
from enginecore_wire.multimodal import (
    FieldKind,
    MultiModalFeatureSpec,
    MultiModalItem,
    PlaceholderRange,
)
from support.eventually import eventually_async
from support.faces import params
from support.protocol_peer import ProtocolPeer

PROMPT = [7, 11, 13]
PICKLE_EXTENSIONS = (1, 2)

calls: list[str] = []
"""What an unpickled canary would call."""


class Canary:
    """Something that is noticed when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return calls.append, ("unpickled",)


async def test_fault_15207_an_unreadable_output_ends_its_own_request_only(
    peer: ProtocolPeer,
) -> None:
    peer.streaming = False
    async with AsyncMPClient(peer.addresses) as client:
        good = client.generate(PROMPT, params(5))
        bad = client.generate(PROMPT, params(5))
        await eventually_async(lambda: len(peer.adds) == 2, "both arrived")
        good_name, bad_name = (request.request_id for request in peer.adds)
        peer.raw([msgspec.msgpack.encode([0, [[bad_name, "no list"]]])])
        with pytest.raises(ProtocolMismatchError, match="could not be read"):
            await anext(bad)
        peer.outputs(EngineCoreOutputs(outputs=[EngineCoreOutput(good_name, [1], finish_reason=1)]))
        assert [output.new_token_ids async for output in good] == [[1]]
        assert client._driver.core.unreadable == 1


DAMAGE = {
    "trailing characters": lambda body: [body + b"\x00"],
    "cut": lambda body: [body[:-1]],
    "another frame's bytes": lambda body: [body[:4] + b"\xff" * 8 + body[12:]],
    "empty body of many frames": lambda body: [b"", body],
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
async def test_fault_15207_a_garbled_message_is_told_and_the_client_goes_on(
    peer: ProtocolPeer, damage: Any
) -> None:
    peer.streaming = False
    async with AsyncMPClient(peer.addresses) as client:
        stream = client.generate(PROMPT, params(5))
        await eventually_async(lambda: peer.adds, "it arrived")
        name = peer.adds[0].request_id
        body = msgspec.msgpack.encode(EngineCoreOutputs(outputs=[EngineCoreOutput(name, [1, 2])]))
        peer.raw(damage(body))
        with pytest.raises((ProtocolMismatchError, LostOutputsError)):
            await anext(stream)
        peer.streaming = True
        tokens = [t async for o in client.generate(PROMPT, params(4)) for t in o.new_token_ids]
        assert tokens == [7, 11, 13, 7]


async def spoiled(peer: ProtocolPeer, client: AsyncMPClient, item: Any, position: int) -> None:
    """Have an output carry `item`, and see it end its own request with an error."""
    peer.streaming = False
    stream = client.generate(PROMPT, params(5))
    await eventually_async(lambda: peer.session().running, "it arrived")
    output: list[Any] = [peer.adds[-1].request_id, [1], *[None] * 16]
    output[13] = 0
    output[position] = item
    peer.raw([msgspec.msgpack.encode([0, [output]])])
    with pytest.raises(ProtocolMismatchError, match="could not be read"):
        await anext(stream)
    peer.streaming = True
    tokens = [t async for o in client.generate(PROMPT, params(4)) for t in o.new_token_ids]
    assert tokens == [7, 11, 13, 7]


async def test_fault_32104_a_tensor_in_a_queue_of_the_engines_host_is_a_clean_error(
    peer: ProtocolPeer,
) -> None:
    handle = {"sender_id": "deadbeef", "message_id": 1, "tensor_id": 2}
    async with AsyncMPClient(peer.addresses) as client:
        await spoiled(peer, client, ["float32", [1], handle], position=4)


@pytest.mark.parametrize("code", PICKLE_EXTENSIONS)
async def test_fault_cve_2024_9053_no_pickle_is_ever_read(peer: ProtocolPeer, code: int) -> None:
    pickled = msgspec.msgpack.Ext(code, pickle.dumps(Canary()))
    async with AsyncMPClient(peer.addresses) as client:
        for item, position in (
            (pickled, 4),
            (["float32", [1], pickled], 4),
            (["<f4", [1], pickled], 12),
            ({"a": pickled}, 8),
        ):
            await spoiled(peer, client, item, position)
        assert calls == []


@pytest.mark.parametrize("code", PICKLE_EXTENSIONS)
async def test_fault_cve_2024_9053_nor_in_a_reply(peer: ProtocolPeer, code: int) -> None:
    peer.streaming = False
    async with AsyncMPClient(peer.addresses) as client:
        stream = client.generate(PROMPT, params(5))
        await eventually_async(lambda: peer.adds, "it arrived")
        peer.results["collective_rpc"] = [msgspec.msgpack.Ext(code, pickle.dumps(Canary()))]
        with pytest.raises(ProtocolMismatchError, match="could not be read"):
            await client.call_utility_async("collective_rpc", "f")
        assert calls == []
        peer.streaming = True
        assert len([output async for output in stream]) == 5, "a reply harms no stream"


OBJECTS = np.array([Canary()], dtype=object)
UNSENDABLE: list[Any] = [Canary(), len, lambda: None, object(), OBJECTS,
                         msgspec.msgpack.Ext(1, b"x"), msgspec.msgpack.Ext(2, b"x")]  # fmt: skip


@pytest.mark.parametrize("value", UNSENDABLE, ids=lambda value: type(value).__name__)
def test_fault_12055_no_pickle_is_ever_written(peer: ProtocolPeer, value: Any) -> None:
    with SyncMPClient(peer.addresses) as client:
        request = EngineCoreRequest(
            "p", PROMPT, sampling_params=params(4, extra_args={"a": [value]})
        )
        with pytest.raises(RequestRejectedError) as caught:
            client.add_request(request)
        assert caught.value.field == "sampling_params.extra_args"
        with pytest.raises(RequestRejectedError):
            client.call_utility("collective_rpc", "f", None, [value])
        assert (peer.adds, peer.calls) == ([], [])


HANDLES: list[Any] = [{"sender_id": "deadbeef", "message_id": 1}, b"\x80\x04.", "psm_12345678",
                      Canary(), [b"\x80\x04."]]  # fmt: skip


@pytest.mark.parametrize("handle", HANDLES, ids=repr)
def test_fault_cve_2026_115912_a_handle_is_no_tensor(peer: ProtocolPeer, handle: Any) -> None:
    assert peer.ready is not None
    peer.ready = msgspec.structs.replace(peer.ready, modalities=("image",))
    item = MultiModalItem(handle, FieldKind.batched())
    feature = MultiModalFeatureSpec({"pixels": item}, "image", "i", PlaceholderRange(0, 2), "h")
    with SyncMPClient(peer.addresses) as client:
        request = EngineCoreRequest("m", PROMPT, sampling_params=params(4), mm_features=[feature])
        with pytest.raises(RequestRejectedError, match=r"^mm_features"):
            client.add_request(request)
        assert (peer.adds, calls) == ([], [])


def test_fault_16432_sockets_ask_for_no_buffers_of_their_own() -> None:
    """The operating system's buffers, which it bounds, whatever memory the host has."""
    with zmq.Context() as context:
        addresses = "tcp://127.0.0.1:9", "tcp://127.0.0.1:10"
        pair = Pair(context, b"r" * 16, addresses, OwnKey(None), "")
        bound = [
            make_zmq_socket(context, "tcp://127.0.0.1:0", kind) for kind in (zmq.ROUTER, zmq.PULL)
        ]
        try:
            for socket in [*pair._sockets.values(), *bound]:
                assert socket.getsockopt(zmq.SNDBUF) == -1
                assert socket.getsockopt(zmq.RCVBUF) == -1
        finally:
            pair.close(farewell=False)
            for socket in bound:
                socket.close(0)


PICKLERS = re.compile(r"^\s*(?:from|import)\s+(?:pickle|cloudpickle|dill|shelve|marshal)\b", re.M)


def test_fault_12055_the_sources_never_touch_pickle() -> None:
    root = Path(__file__).resolve().parents[3]
    sources = [*root.glob("*/src/**/*.py")]
    assert len(sources) > 100
    assert [path for path in sources if PICKLERS.search(path.read_text())] == []
