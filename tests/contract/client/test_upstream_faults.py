"""Faults that users of vLLM met, held from here: what a client sends, and under which id.

The number in a test's name is its row in docs/upstream-faults.md.
"""

import asyncio
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from enginecore_client import (
    AsyncMPClient,
    EngineCoreOutput,
    EngineCoreRequest,
    FinishReason,
    RequestRejectedError,
    SyncMPClient,
    UtilityError,
)
from enginecore_wire.requests import LoRARequest, StructuredOutputs
from enginecore_wire.tensors import Tensor
from support.eventually import eventually_async
from support.faces import FACES, AsyncFace, SyncFace, params
from support.pod import Pod, client_addresses
from support.protocol_peer import ProtocolPeer

PROMPT = [7, 11, 13]
VOCAB, CONTEXT = 1000, 2048

Face = SyncFace | AsyncFace


@pytest.fixture(params=FACES)
def face(request: pytest.FixtureRequest, pod: Pod) -> Iterator[Face]:
    connected = FACES[request.param](client_addresses([pod]))
    yield connected
    connected.close()


def adds(face: Face) -> list[str]:
    """Return the ids of all requests the engine has ever been given."""
    ((journal,),) = [face.call("collective_rpc", "journal")]
    return [what for kind, what in journal if kind == "add"]


def served(face: Face) -> list[int]:
    return [t for output in face.generate(PROMPT, params(4)) for t in output.new_token_ids]


def refused(face: Face, field: str, **fields: Any) -> None:
    """Have a request refused with its field, and nothing of it reach the engine."""
    before = adds(face)
    given = {"request_id": "bad", "prompt_token_ids": PROMPT, "sampling_params": params(4)}
    request = EngineCoreRequest(**(given | fields))
    with pytest.raises(RequestRejectedError) as caught:
        face.add(request)
    assert caught.value.field == field
    assert f"{field}: got " in str(caught.value)
    assert adds(face) == before
    assert face.client._driver.core.unfinished == 0


POISON = {
    "temperature of 5": ({"sampling_params": params(4, temperature=5.0)},
                         "sampling_params.temperature"),
    "token id past the vocabulary": ({"prompt_token_ids": [1, VOCAB]}, "prompt_token_ids[1]"),
    "prompt past the context": ({"prompt_token_ids": [1] * (CONTEXT + 1)}, "prompt_token_ids"),
    "no parameters": ({"sampling_params": None}, "sampling_params"),
    "structured output without a backend": (
        {"sampling_params": params(4, structured_outputs=StructuredOutputs(regex="a"))},
        "sampling_params.structured_outputs._backend"),
    "LoRA while it is off": ({"lora_request": LoRARequest("a", 1, "/a")}, "lora_request"),
    "wrong type": ({"cache_salt": 5}, "cache_salt"),
    "type inside": ({"sampling_params": params(4, seed="x")}, "sampling_params.seed"),
}  # fmt: skip


def test_fault_26139_poison_is_refused_before_it_is_sent(face: Face) -> None:
    for fields, field in POISON.values():
        refused(face, field, **fields)
    assert served(face) == [7, 11, 13, 7]


def test_fault_26139_a_wrong_client_index_never_leaves(face: Face, pod: Pod) -> None:
    request = EngineCoreRequest("far", PROMPT, sampling_params=params(4), client_index=9999)
    face.add(request)
    seen: list[EngineCoreOutput] = []
    while not seen or seen[-1].finish_reason is None:
        seen += face.get_output().outputs
    assert seen[-1].finish_reason is FinishReason.LENGTH
    assert pod.status().phase == "Ready"


def test_fault_cve_2026_114051_min_tokens_over_max_tokens(face: Face) -> None:
    refused(face, "sampling_params.min_tokens", sampling_params=params(4, min_tokens=5))
    assert served(face) == [7, 11, 13, 7]


def test_fault_cve_2026_116174_token_ids_outside_the_vocabulary(face: Face) -> None:
    for token in (VOCAB, 2**31, 2**63, -1):
        refused(face, "prompt_token_ids[0]", prompt_token_ids=[token, 1])
    ids = "sampling_params."
    refused(face, f"{ids}stop_token_ids", sampling_params=params(4, stop_token_ids=[VOCAB]))
    refused(face, f"{ids}logit_bias", sampling_params=params(4, logit_bias={VOCAB: 1.0}))
    refused(face, f"{ids}allowed_token_ids", sampling_params=params(4, allowed_token_ids=[-1]))
    assert served(face) == [7, 11, 13, 7]


def test_fault_pysec_2026_4350_too_many_logprob_token_ids(face: Face) -> None:
    for ids in ([1] * 129, [VOCAB]):
        sampling = params(4, logprob_token_ids=ids)
        refused(face, "sampling_params.logprob_token_ids", sampling_params=sampling)
    assert served(face) == [7, 11, 13, 7]


def test_fault_cve_2025_62164_embeddings_are_dense_and_of_the_right_shape(
    peer: ProtocolPeer,
) -> None:
    torch = pytest.importorskip("torch")
    assert peer.ready is not None
    peer.ready = type(peer.ready)(engine=peer.ready.engine, vocab_size=VOCAB, hidden_size=4)
    wrong = [
        torch.eye(4).to_sparse(),
        torch.zeros(2, 3),
        torch.zeros(4),
        torch.zeros(2, 4, dtype=torch.int64),
        torch.zeros(0, 4),
        Tensor("float64", (1, 4), bytes(32)),
    ]
    with SyncMPClient(peer.addresses) as client:
        for embeds in wrong:
            request = EngineCoreRequest("e", None, sampling_params=params(4), prompt_embeds=embeds)
            with pytest.raises(RequestRejectedError, match=r"^prompt_embeds: ") as caught:
                client.add_request(request)
            assert caught.value.field == "prompt_embeds"
        assert peer.adds == []


def test_fault_10583_duplicate_ids_become_distinct(face: Face) -> None:
    before = len(adds(face))
    streams = [face.generate(PROMPT, params(200), request_id="same") for _ in range(20)]
    outputs = [[next(stream)] for stream in streams]
    internal = adds(face)[before:]
    assert len(set(internal)) == 20
    for stream, seen in zip(streams, outputs, strict=True):
        seen += list(stream)
        assert sum(len(output.new_token_ids) for output in seen) == 200
        assert {output.request_id for output in seen} == {"same"}


def test_fault_27987_the_engines_id_has_a_suffix_and_the_callers_comes_back(face: Face) -> None:
    for name in ("x-request-id", "a-1234abcd", "日本", "", "a" * 1000):
        seen = list(face.generate(PROMPT, params(3), request_id=name))
        shown = {output.request_id for output in seen}
        assert shown == {name} if name else len(shown) == 1
        told, _, suffix = adds(face)[-1].rpartition("-")
        assert {told} == shown
        assert len(suffix) == 8
        assert set(suffix) <= set("0123456789abcdef")


async def test_fault_23697_abort_and_add_again(pod: Pod) -> None:
    """An id is used again at once, 1000 times: the second request is whole, the first is gone."""
    chance = random.Random(23697)
    async with AsyncMPClient(client_addresses([pod])) as client:

        async def again(name: str, turns: int) -> None:
            for _ in range(turns):
                first = client.generate(PROMPT, params(2000), name)
                if chance.random() < 0.5:
                    await anext(first)
                await client.abort_requests_async([name])
                second = client.generate(PROMPT, params(3), name)
                tokens = [token async for output in second for token in output.new_token_ids]
                assert tokens == PROMPT
                ended = [output async for output in first]
                assert ended[-1].finish_reason is FinishReason.ABORT

        await asyncio.gather(*(again(f"reused-{number}", 50) for number in range(20)))
        assert client._driver.core.unfinished == 0
        await eventually_async(lambda: pod.status().in_flight == 0, "the engine forgot")


async def test_fault_23697_abort_and_add_again_in_one_queue(pod: Pod) -> None:
    """The same through add_request, where only the id tells whose an output is."""
    async with AsyncMPClient(client_addresses([pod])) as client:
        for _ in range(100):
            for sampling in (params(2000), params(3)):
                await client.abort_requests_async(["q"])
                await client.add_request_async(
                    EngineCoreRequest("q", PROMPT, sampling_params=sampling)
                )
            tokens: list[int] = []
            while len(tokens) < 3:
                for output in (await client.get_output_async()).outputs:
                    tokens += output.new_token_ids
            assert tokens == PROMPT
        assert client._driver.core.unfinished == 0


def test_fault_13060_unknown_methods_are_refused_and_harm_nothing(face: Face) -> None:
    for method in ("shutdown", "__class__", "add_request", "no_such_call", "_private"):
        with pytest.raises(RequestRejectedError, match="is not among the calls") as caught:
            face.call(method)
        assert caught.value.field == "method"
    with pytest.raises(UtilityError, match="no method sleep"):
        face.call("sleep", 1, "abort")
    assert face.call("is_sleeping") is False
    assert served(face) == [7, 11, 13, 7]


METHODS: list[Any] = [b"cos\nsystem\n(S'x'\ntR.", bytearray(b"f"), len, lambda worker: worker, 5,
                      None, ["f"], "__reduce__", "_private", "a.b", ""]  # fmt: skip


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_fault_collective_rpc_takes_public_names_only(face: Face, method: Any) -> None:
    call: Callable[[], Any] = lambda: face.call("collective_rpc", method)  # noqa: E731
    with pytest.raises(RequestRejectedError):
        call()
    assert served(face) == [7, 11, 13, 7]


async def test_fault_43429_engines_that_must_agree() -> None:
    with ProtocolPeer(0) as one, ProtocolPeer(1) as two:
        addresses = {
            "input_address": [one.input_address, two.input_address],
            "output_address": [one.output_address, two.output_address],
        }
        async with AsyncMPClient(addresses) as client:
            one.results = {"is_sleeping": True, "collective_rpc": [1], "reset_prefix_cache": True}
            two.results = {"is_sleeping": False, "collective_rpc": [2], "reset_prefix_cache": False}
            with pytest.raises(UtilityError, match=r"engines disagree: \[True, False\]"):
                await client.is_sleeping_async()
            assert await client.collective_rpc_async("f") == [1, 2]
            assert await client.reset_prefix_cache_async() is False
            assert await client.call_utility_async("is_sleeping", engine=1) is False
