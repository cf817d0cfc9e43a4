"""Requests that nothing happens to."""

import itertools

import pytest

from enginecore_client.errors import RequestRejectedError, RequestTimeoutError
from enginecore_client.testing.behaviours._registry import (
    OUTSIDE,
    PROMPT,
    Running,
    request,
    shared,
    tokens,
)
from enginecore_client.testing.cells import Way
from enginecore_client.testing.engines import Trait
from enginecore_client.testing.faces import params
from enginecore_wire.outputs import EngineCoreOutput, FinishReason
from enginecore_wire.requests import OutputKind

PROMPTS = [[(7 * i + j) % 250 + 1 for j in range(3 + 5 * i)] for i in range(12)]

TRACE = {
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "baggage": "user=jörg;team=a%20b",
}


@shared()
def requests_come_whole(run: Running) -> None:
    """`get_output` returns every token of every request, and after its end nothing more."""
    wanted = {f"request-{i}": 5 + i for i in range(8)}
    found = run.collect(*(request(name, count) for name, count in wanted.items()))
    assert {name: len(tokens(outputs)) for name, outputs in found.items()} == wanted
    for outputs in found.values():
        assert [output.finish_reason for output in outputs[:-1]] == [None] * (len(outputs) - 1)
        assert outputs[-1].finish_reason is FinishReason.LENGTH


@shared()
def stream_comes_whole(run: Running) -> None:
    """`generate` yields the outputs of its request, the last one with the reason why."""
    outputs = list(run.face.generate([5, 6, 7], params(20), request_id="mine"))
    assert {output.request_id for output in outputs} == {"mine"}
    assert len(tokens(outputs)) == 20
    assert [output.finish_reason for output in outputs[:-1]] == [None] * (len(outputs) - 1)
    assert outputs[-1].finish_reason is FinishReason.LENGTH


@shared(needs=frozenset({Trait.REPEATS_PROMPT}))
def tokens_are_the_engines(run: Running) -> None:
    """The tokens are those that the engine sent, none twice and none missing."""
    assert run.read(20, [5, 6, 7]) == [5, 6, 7] * 6 + [5, 6]


@shared(needs=frozenset({Trait.REPEATABLE}))
def streams_at_once_equal_those_alone(run: Running) -> None:
    """Streams that run at once get the tokens each would get alone."""
    alone = [run.read(24, prompt) for prompt in PROMPTS[:4]]
    streams = [run.face.generate(prompt, params(24)) for prompt in PROMPTS]
    together = [tokens(stream) for stream in streams]
    assert together[:4] == alone
    assert all(len(stream) == 24 for stream in together)


@shared()
def streams_and_queue_get_their_own(run: Running) -> None:
    """Outputs of streams never come from `get_output`, nor the other way round."""
    run.face.add(request("queued", 12))
    stream = run.face.generate(list(PROMPT), params(12), request_id="streamed")
    outputs = list(stream)
    assert {output.request_id for output in outputs} == {"streamed"}
    assert len(tokens(outputs)) == 12
    assert len(tokens(run.finish(["queued"])["queued"])) == 12


@shared()
def sequences_of_one_request(run: Running) -> None:
    """`n` asks for so many sequences, each of them whole and told apart by its index."""
    sampling = params(6, n=3, temperature=1.0, seed=4)
    by_index: dict[int, list[EngineCoreOutput]] = {}
    for output in run.face.generate(list(PROMPT), sampling, request_id="several"):
        assert output.request_id == "several"
        by_index.setdefault(output.index, []).append(output)
    assert sorted(by_index) == [0, 1, 2]
    for outputs in by_index.values():
        assert len(tokens(outputs)) == 6
        assert outputs[-1].finish_reason is FinishReason.LENGTH


@shared()
def output_kinds(run: Running) -> None:
    """CUMULATIVE outputs repeat what came before, FINAL_ONLY comes once at the end."""
    (final,) = run.face.generate(list(PROMPT), params(6, output_kind=OutputKind.FINAL_ONLY))
    assert len(final.new_token_ids) == 6
    outputs = list(run.face.generate(list(PROMPT), params(6, output_kind=OutputKind.CUMULATIVE)))
    assert outputs[-1].new_token_ids == final.new_token_ids
    for before, after in itertools.pairwise(outputs):
        assert after.new_token_ids[: len(before.new_token_ids)] == before.new_token_ids


@shared()
def equal_ids_do_not_meet(run: Running) -> None:
    """Requests under one id are different ones to the engine, and each comes back under it."""
    streams = [run.face.generate(list(PROMPT), params(10), request_id="same") for _ in range(5)]
    for stream in streams:
        outputs = list(stream)
        assert {output.request_id for output in outputs} == {"same"}
        assert len(tokens(outputs)) == 10


@shared()
def id_in_use_is_refused(run: Running) -> None:
    """`add_request` refuses an id that is unfinished, as nothing could tell the two apart."""
    run.face.add(request("taken", run.engine.long_tokens))
    with pytest.raises(RequestRejectedError) as refused:
        run.face.add(request("taken", 4))
    assert refused.value.field == "request_id"
    run.drop("taken")
    assert len(tokens(run.collect(request("taken", 4))["taken"])) == 4


@shared()
def deadline_ends_a_request(run: Running) -> None:
    """A request that is not finished at its deadline ends with an error, in the engine, too."""
    stream = run.face.generate(list(PROMPT), run.long, request_id="late", deadline=0.1)
    with pytest.raises(RequestTimeoutError, match="'late' was not finished") as late:
        for _ in stream:
            pass
    assert late.value.request_ids == ("late",)
    run.wait_idle()


@shared(needs=frozenset({Trait.REPEATS_TRACE}))
def trace_context_reaches_the_engine(run: Running) -> None:
    """The `trace_headers` of a request reach its engine as they are, and no other request's."""
    sent = [TRACE | {"tracestate": f"vendor=t{number}"} for number in range(3)]
    streams = [
        run.face.generate(list(PROMPT), params(6), trace_headers=headers) for headers in sent
    ]
    for headers, stream in zip(sent, streams, strict=True):
        outputs = list(stream)
        assert len(tokens(outputs)) == 6
        assert [output.trace_headers for output in outputs] == [headers] * len(outputs)
    (whole,) = run.collect(request("whole", 2, trace_headers=TRACE)).values()
    assert [output.trace_headers for output in whole] == [TRACE] * len(whole)
    assert all(output.trace_headers is None for output in run.face.generate([1], params(2)))


@shared(ways=OUTSIDE)
def slow_reader_holds_up_nobody(run: Running) -> None:
    """A stream that nobody reads keeps its outputs, and others go on."""
    slow = run.face.generate(list(PROMPT), params(30))
    first = next(slow)
    assert len(run.read(40)) == 40
    assert len(tokens([first, *slow])) == 30


@shared(ways=OUTSIDE)
def get_output_waits_no_longer_than_asked(run: Running) -> None:
    """`get_output` ends with TimeoutError when nothing comes, and nothing is lost by that."""
    for _ in range(2):
        with pytest.raises(TimeoutError):
            run.face.get_output(timeout=0.05)
    assert len(tokens(run.collect(request("after", 4))["after"])) == 4


@shared(ways=frozenset({Way.IN_PROCESS}))
def get_output_of_an_idle_engine_is_empty(run: Running) -> None:
    """`get_output` computes a step; where there is none to compute, it returns no outputs."""
    assert run.face.get_output().outputs == []
    assert len(tokens(run.collect(request("after", 4))["after"])) == 4
    assert run.face.get_output().outputs == []
