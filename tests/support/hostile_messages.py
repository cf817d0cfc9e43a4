"""What a hostile client sends, as one table for every engine behind an engine server.

A row is one message and the code of the REJECT it gets. The rows that would hurt a vLLM whose
sockets clients reach themselves are named after what they would do to it.
"""

from collections.abc import Iterator
from math import inf, nan
from typing import Any, NamedTuple

import msgspec

from enginecore_wire.control import Ready
from enginecore_wire.outputs import ENGINE_CORE_DEAD
from enginecore_wire.requests import EngineCoreRequest, LoRARequest, PoolingParams, SamplingParams
from support.raw_client import request

encode = msgspec.msgpack.encode
Ext = msgspec.msgpack.Ext

ADD, ABORT, UTILITY, PING = b"\x00", b"\x01", b"\x03", b"\x82"
NAME = "hostile"
DEEP = b"\x91" * 100_000
LARGE = 100_000_000

UNLISTED = (
    "shutdown", "abort_requests", "add_request", "step", "process_input_queue", "run_busy_loop",
    "_handle_client_request", "__init__", "__class__", "__reduce__", "model_executor",
    "scheduler", "preprocess_add_request", "reinitialize_distributed", "handle_fault_tolerance",
    "commit_prepared_elastic_ep", "barrier", "", "is_sleeping ", "IS_SLEEPING", "is_sleeping\0",
)  # fmt: skip
"""Attributes that vLLM would call by name, and names that are nearly known ones."""


class Row(NamedTuple):
    """One message; `code` is that of its REJECT, "" where it is served like any other."""

    name: str
    frames: list[Any]
    code: str


def nested(depth: int) -> list[Any]:
    """Return a list inside lists."""
    return [nested(depth - 1)] if depth else []


def hostile_messages(ready: Ready) -> list[Row]:
    """Return the table for the engine that said `ready`."""
    return [
        *_types(),
        *_shapes(ready),
        *_truncated(),
        *_extensions(),
        *_prompts(ready),
        *_params(ready),
        *_requests(),
        *_calls(),
        *_sizes(ready),
    ]


def _types() -> Iterator[Row]:
    """An unknown type byte ends the thread that reads vLLM's input."""
    good = encode(request(NAME))
    taken = {0x00, 0x01, 0x03, 0x80, 0x82, 0x89}
    for kind in set(range(256)) - taken:
        yield Row(f"type {kind:02x}", [bytes([kind]), good], "unknown_type")
    for name, frames in {
        "no type": [b"", b""],
        "one empty frame": [b""],
        "two bytes of type": [b"\x00\x00", good],
        "the engine's last word": [ENGINE_CORE_DEAD],
        "the last word as a body": [b"\x81", ENGINE_CORE_DEAD],
        "the coordinator's gate": [b"READY"],
        "a forged READY": [b"\x81", encode(Ready(slot=1, name="forged"))],
        "a forged READY payload": [encode({"max_model_len": 1, "num_gpu_blocks": 1})],
        "a forged output": [encode([0, [[NAME, [1], None, None, None, 0]]])],
        "a forged handshake": [encode({"status": "HELLO", "local": True, "headless": False})],
        "no type, and a request": [b"", ADD, good],
    }.items():
        yield Row(name, frames, "unknown_type")
    for kind in (ADD, ABORT, UTILITY, PING):
        yield Row(f"type {kind.hex()} alone", [kind], "invalid_request")


def _shapes(ready: Ready) -> Iterator[Row]:
    """Fewer than nine items, or one of a wrong type, end the same thread."""
    minimum = [NAME, [1], None, {}, None, 0.0, None, None, None]
    for length in range(len(minimum)):
        yield Row(f"{length} items", [ADD, encode(minimum[:length])], "invalid_request")
    for position in range(22):
        whole = [*minimum, None, None, 0, 0, 0, None, False, None, None, None, False, None, None]
        whole[position] = Ext(5, b"?")
        yield Row(f"an odd item {position}", [ADD, encode(whole)], "invalid_request")
    for name, body in {
        "no bytes": b"",
        "no msgpack": b"\xc1",
        "a map": b"\x80",
        "a number": b"\x07",
        "deep": DEEP,
        "deep inside": b"\x99" + encode(NAME) + DEEP,
        "an array that claims 2^32 items": b"\xdd\xff\xff\xff\xff\x01",
        "a map that claims 2^32 keys": b"\xdf\xff\xff\xff\xff\x01",
        "text that claims 2^32 bytes": b"\x99\xdb\xff\xff\xff\xffr",
        "text that is no UTF-8": b"\x99\xa2\xff\xfe",
        "two messages in one": encode(request(NAME)) + encode(request(NAME)),
        "a name of bytes": encode([NAME.encode(), *minimum[1:]]),
        "an empty name": encode(["", *minimum[1:]]),
        "a name of 2,000 characters": encode(["n" * 2000, *minimum[1:]]),
    }.items():
        yield Row(f"ADD: {name}", [ADD, body], "invalid_request")
    tensor = ["float32", [2, max(1, ready.hidden_size)], 1]
    embeds = [NAME, None, *minimum[2:], tensor]
    yield Row("a tensor without its frame", [ADD, encode(embeds)], "invalid_request")
    yield Row("a tensor in a short frame", [ADD, encode(embeds), b"123"], "invalid_request")
    tensor[2] = 2**40
    yield Row("a tensor in a frame that never was", [ADD, encode(embeds)], "invalid_request")
    for name, body in {"no array": b"\x80", "numbers": encode([1, 2]), "deep": DEEP}.items():
        yield Row(f"ABORT: {name}", [ABORT, body], "invalid_request")
    for name, body in {"garbage": b"\xc1", "deep": b"\x81\xa1x" + DEEP}.items():
        yield Row(f"PING: {name}", [PING, body], "invalid_request")


def _truncated() -> Iterator[Row]:
    good = encode(request(NAME))
    for end in range(len(good)):
        yield Row(f"cut at {end}", [ADD, good[:end]], "invalid_request")


def _extensions() -> Iterator[Row]:
    """vLLM's 1 and 2 are pickles; whoever reads them runs what is in them."""
    pickled = b"cos\nsystem\n(S'true'\ntR."
    for code in (1, 2):
        odd = Ext(code, pickled)
        for field, changes in {
            "prompt": {"prompt_token_ids": odd},
            "embeddings": {"prompt_token_ids": None, "prompt_embeds": ["float32", [1, 1], odd]},
            "trace": {"trace_headers": {"traceparent": odd}},
            "hints": {"kv_hints": ["1", "m", [["a", "b", "1", {"x": odd}]]]},
            "extra arguments": {"sampling_params": {"max_tokens": 2, "extra_args": {"a": [odd]}}},
        }.items():
            yield Row(f"extension {code}: {field}", [ADD, _with(changes)], "invalid_request")
        call = encode([0, 7, "profile", [True, odd]])
        yield Row(f"extension {code}: argument", [UTILITY, call], "invalid_request")
    call = encode([0, 7, "collective_rpc", [pickled]])
    yield Row("a pickle in the place of a method's name", [UTILITY, call], "invalid_request")


def _prompts(ready: Ready) -> Iterator[Row]:
    """A token past the vocabulary, or a prompt past the context, ends a vLLM at once."""
    vocab, context = ready.vocab_size, ready.engine["max_model_len"]
    for name, ids in {
        "first token past the vocabulary": [vocab],
        "token far past it": [1, 2**62],
        "negative token": [1, -1],
        "token of a float": [1.5],
        "token of a bool": [True],
        "no token": [],
        "no prompt": None,
    }.items():
        yield Row(name, [ADD, _with({"prompt_token_ids": ids})], "invalid_request")
    for count in (context, context + 1, 10 * context):
        body = _with({"prompt_token_ids": [1] * count})
        yield Row(f"{count} tokens of {context}", [ADD, body], "too_large")


def _params(ready: Ready) -> Iterator[Row]:
    """What vLLM's SamplingParams refuse themselves, they refuse in the thread that reads."""
    vocab = ready.vocab_size
    for field, values in {
        "temperature": [5.0, -0.1, nan, inf],
        "top_p": [0.0, 1.5, nan],
        "top_k": [-2],
        "min_p": [-0.1, 2.0],
        "presence_penalty": [3.0],
        "frequency_penalty": [-3.0],
        "repetition_penalty": [0.0, -1.0],
        "max_tokens": [0, -1, None],
        "min_tokens": [-1, 3],
        "n": [0, 2, 2**40],
        "logprobs": [-5, 10**6],
        "prompt_logprobs": [-5, 10**6],
        "logprob_token_ids": [[vocab], [-1], list(range(129))],
        "stop_token_ids": [[-1], ["x"]],
        "_bad_words_token_ids": [[[vocab]], [[]]],
        "allowed_token_ids": [[], [vocab]],
        "logit_bias": [{vocab: 1.0}, {-1: 1.0}],
        "structured_outputs": [{"grammar": 'root ::= "a"'}, {"_backend": "xgrammar"}],
        "extra_args": [{"a": nested(100)}, "text"],
        "output_kind": [7],
        "seed": [2**64 - 1],
    }.items():
        for value in values:
            params = {"max_tokens": 2} | {field: value}
            body = _with({"sampling_params": params})
            yield Row(f"{field}: {str(value)[:30]}", [ADD, body], "invalid_request")
    yield Row("no parameters", [ADD, _with({"sampling_params": None})], "invalid_request")
    both = _with({"pooling_params": PoolingParams(task="embed")})
    yield Row("parameters of both kinds", [ADD, both], "invalid_request")
    pooling = _with({"sampling_params": None, "pooling_params": PoolingParams(task="embed")})
    yield Row("a task that is not the engine's", [ADD, pooling], "invalid_request")


def _requests() -> Iterator[Row]:
    for name, changes in {
        "an adapter that nobody loaded": {"lora_request": LoRARequest("a", 1, "/nowhere/at/all")},
        "an adapter of no number": {"lora_request": LoRARequest("a", 0, "/tmp")},
        "an adapter without a path": {"lora_request": LoRARequest("a", 1, "")},
        "a negative client": {"client_index": -1},
        "a client past all numbers": {"client_index": 2**63},
        "a session that stays open": {"resumable": True},
        "an abort in the request": {"abort_immediately": True},
        "a time that is none": {"arrival_time": nan},
        "a header in a header": {"trace_headers": {"a": "1\r\nb: 2"}},
        "a trace of 1 MB": {"trace_headers": {"a": "x" * 1_000_000}},
        "an image for a text model": {"mm_features": [{"data": None, "modality": "image",
            "identifier": "i", "mm_position": {"offset": 0, "length": 1}, "mm_hash": "h"}]},
    }.items():  # fmt: skip
        yield Row(name, [ADD, _with(changes)], "invalid_request")
    for index in (63, 64, 5000):
        body = encode(request(f"{NAME}-{index}", client_index=index, max_tokens=2))
        yield Row(f"the slot {index} in the place of its own", [ADD, body], "")


def _calls() -> Iterator[Row]:
    """vLLM runs whatever attribute of its engine is called."""
    for method in UNLISTED:
        yield Row(f"call {method!r}", [UTILITY, encode([0, 7, method, []])], "unknown_method")
    for name, body in {
        "no array": b"\x80",
        "no method": encode([0, 7]),
        "a method of bytes": encode([0, 7, b"is_sleeping", []]),
        "a method of a number": encode([0, 7, 5, []]),
        "arguments of a map": encode([0, 7, "is_sleeping", {}]),
        "an id of text": encode([0, "7", "is_sleeping", []]),
        "a negative id": encode([0, -1, "is_sleeping", []]),
        "a private method of the workers": encode([0, 7, "collective_rpc", ["__class__"]]),
        "deep arguments": encode([0, 7, "profile", [nested(100)]]),
    }.items():
        yield Row(f"UTILITY: {name}", [UTILITY, body], "invalid_request")


def _sizes(ready: Ready) -> Iterator[Row]:
    good = encode(request(NAME))
    large = bytes(LARGE)
    yield Row("100 MB of a request", [ADD, large], "too_large")
    yield Row("100 MB of a call", [UTILITY, large], "too_large")
    yield Row("100 MB of ids", [ABORT, large], "too_large")
    yield Row("100 MB of a type", [large, good], "unknown_type")
    yield Row("1,100 frames", [ADD, good, *[b"x"] * 1100], "too_large")
    ids = encode(["a"] * (max(1 << 16, ready.limits.in_flight) + 1))
    yield Row("more ids than one may abort", [ABORT, ids], "invalid_request")
    yield Row("100 MB beside a request that points at none",
              [ADD, encode(request(f"{NAME}-beside", max_tokens=2)), large], "")  # fmt: skip


def _with(changes: dict[str, Any]) -> bytes:
    """Return an ADD with some fields changed to what a typed request may not have."""
    whole: list[Any] = [
        getattr(request(NAME, max_tokens=2), field) for field in EngineCoreRequest.__struct_fields__
    ]
    for field, value in changes.items():
        whole[EngineCoreRequest.__struct_fields__.index(field)] = value
    return encode(whole)


def polite_request(name: str) -> EngineCoreRequest:
    """Return what a client asks that means well; every engine answers it the same each time."""
    return request(name, sampling_params=SamplingParams(temperature=0.0, max_tokens=2,
                                                        ignore_eos=True))  # fmt: skip
