"""Whatever the request checks let through, a real vLLM answers, and lives on."""

import random
import struct
from math import inf

import msgspec
import pytest
import zmq

from enginecore_wire.handshake import ReadyPayload
from enginecore_wire.problems import RequestLimits
from enginecore_wire.requests import (
    EngineCoreRequest,
    KvHintAction,
    KvHints,
    OutputKind,
    RepetitionDetection,
    RequestType,
    SamplingParams,
    StructuredOutputs,
)
from enginecore_wire.tensors import Tensor
from enginecore_wire.validation import check_request
from support.vllm_environment import build_environment, build_model
from support.vllm_front_end import VllmFrontEnd, serve, stop

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(900),
    pytest.mark.may_leak("processes", "threads", "sockets", reason="one engine for the module"),
]

VOCAB = 49152
CONTEXT = 64
LAST = VOCAB - 1


def _grammar(**constraint):
    return StructuredOutputs(backend="xgrammar", **constraint)


def _rows(count):
    return Tensor("<i4", (count, 1), struct.pack(f"<{count}i", *([LAST] * count)))


EXTREMES = {
    "temperature": [0.0, 1e-9, 0.5, 1.0, 2.0],
    "top_p": [1e-9, 0.5, 1.0],
    "top_k": [-1, 0, 1, VOCAB, 2**40, 2**63],
    "min_p": [0.0, 0.5, 1.0],
    "presence_penalty": [-2.0, 2.0],
    "frequency_penalty": [-2.0, 2.0],
    "repetition_penalty": [1e-30, 0.5, 1e30],
    "seed": [None, -1, 0, 2**63 - 1, -(2**63)],
    "stop": [None, [], "stop", ["a", "b" * 500]],
    "stop_token_ids": [None, [], [0, LAST], list(range(128))],
    "ignore_eos": [True, False],
    "max_tokens": [1, 2, 9, 2**31 - 1],
    "min_tokens": [0, 1, 2, CONTEXT],
    "logprobs": [None, 0, 1, 20],
    "prompt_logprobs": [None, 0, 1, 20],
    "logprob_token_ids": [None, [], [0, LAST], [5]],
    "flat_logprobs": [True, False],
    "detokenize": [True, False],
    "output_kind": list(OutputKind),
    "stream_interval": [None, 1, 1000],
    "watermarking": [None, True, False],
    "logit_bias": [None, {}, {0: -inf, LAST: 1e38}, {1: -1e38}, dict.fromkeys(range(1024), -100.0)],
    "allowed_token_ids": [None, [0], [LAST, 7], list(range(1024))],
    "extra_args": [None, {}, {"kv_transfer_params": {"do_remote_prefill": True}},
                   {"ec_transfer_params": {}}, {"x": [2**64 - 1, "s", None]},
                   {"kv_cache_report_mode": 7}],
    "bad_words": [None, [], ["word"]],
    "bad_words_token_ids": [None, [], [[0]], [[1, LAST]] * 128],
    "skip_reading_prefix_cache": [None, True, False],
    "thinking_token_budget": [None, -1, 0, 3],
    "repetition_detection": [None, RepetitionDetection(), RepetitionDetection(2**31 - 1, 1, 2),
                             RepetitionDetection(4, 0, 3)],
    "routed_experts_prompt_start": [0, 1],
    "eos_token_id": [None, 0, 2, LAST],
    "all_stop_token_ids": [[], [2], [0, LAST], list(range(128))],
    "structured_outputs": [
        None, None, None, _grammar(grammar='root ::= "yes" | "no"'),
        _grammar(json={"type": "object"}),
        _grammar(json="not JSON"), _grammar(json='{"type": 7}'), _grammar(regex="(("),
        _grammar(regex="[a-c]{2}"), _grammar(grammar="root ::= \"a\""), _grammar(grammar="::="),
        _grammar(json_object=True), _grammar(structural_tag="{}"),
        StructuredOutputs(choice=["a"], backend="no such library"),
    ],
}  # fmt: skip
AROUND = {
    "arrival_time": [0.0, -1.0, 1e300, inf],
    "cache_salt": [None, "", "salt"],
    "data_parallel_rank": [None, 0, 7],
    "current_wave": [0, 5, 2**63],
    "priority": [0, -(2**63), 2**64 - 1],
    "trace_headers": [None, {}, {"traceparent": "no such thing"}],
    "external_req_id": [None, "", "id"],
    "reasoning_ended": [None, True, False],
    "reasoning_parser_kwargs": [None, {}, {"chat_template_kwargs": 3}],
    "abort_immediately": [False, False, False, True],
    "session_id": [None, "session"],
    "kv_hints": [None, KvHints("1", "m", [KvHintAction("a", "pin", "9", {"x": 1})])],
    "mm_features": [None, []],
}


def _random_request(pick: random.Random, number: int) -> EngineCoreRequest:
    """Return a request with up to a dozen fields at values near a limit."""

    def some(table, most):
        names = pick.sample(sorted(table), pick.randint(0, most))
        return {name: pick.choice(table[name]) for name in names}

    length = pick.choice([1, 2, 17, CONTEXT - 2, CONTEXT - 1])
    sampling = {"max_tokens": 3} | some(EXTREMES, 9)
    if pick.random() < 0.05:
        sampling["prompt_logprob_token_ids"] = _rows(max(length - 1, 1))
    return EngineCoreRequest(
        f"{number}",
        [pick.choice([0, 1, 2, 1000, LAST]) for _ in range(length)],
        sampling_params=SamplingParams(**sampling),
        **some(AROUND, 3),
    )


@pytest.fixture(scope="module")
def engine():
    python = build_environment()
    context = zmq.Context()
    front_end = VllmFrontEnd(context)
    process = serve(python, build_model(python), front_end.port,
                    "--max-model-len", str(CONTEXT), "--max-num-seqs", "8")  # fmt: skip
    try:
        ready = msgspec.msgpack.decode(front_end.start(), type=ReadyPayload)
        assert ready.max_model_len == CONTEXT
        yield front_end
    finally:
        front_end.close()
        context.term()
        stop(process)


@pytest.mark.parametrize("seed", range(4))
def test_engine_answers_every_request_that_passes(engine, seed):
    pick = random.Random(seed)
    limits = RequestLimits(vocab_size=VOCAB, max_model_len=CONTEXT)
    drawn = [_random_request(pick, 1000 * seed + number) for number in range(40)]
    passed = [request for request in drawn if check_request(request, limits) is None]
    assert len(passed) >= 10
    for request in passed:
        engine.send(RequestType.ADD, request)
    engine.finish([r.request_id for r in passed if not r.abort_immediately])
    assert engine.call("is_sleeping") is False
