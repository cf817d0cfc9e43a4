"""Requests that are ended early."""

from enginecore_client.testing.behaviours._registry import (
    PROMPT,
    Running,
    request,
    shared,
    tokens,
)
from enginecore_client.testing.faces import params
from enginecore_wire.outputs import FinishReason


@shared()
def abort_ends_a_stream(run: Running) -> None:
    """`abort_requests` ends a stream with reason ABORT, and the engine's work on it; it returns
    the ids that had not ended."""
    stream = run.face.generate(list(PROMPT), run.long, request_id="long")
    first = next(stream)
    assert first.finish_reason is None
    assert run.face.abort(["long", "unknown"]) == ["long"]
    rest = list(stream)
    assert [output.finish_reason for output in rest if output.finish_reason is not None] == [
        FinishReason.ABORT
    ]
    assert len(tokens([first, *rest])) < run.engine.long_tokens
    run.wait_idle()


@shared()
def abort_ends_every_sequence(run: Running) -> None:
    """`abort_requests` ends all sequences of a request."""
    sampling = params(run.engine.long_tokens, n=2, temperature=1.0)
    stream = run.face.generate(list(PROMPT), sampling, request_id="several")
    next(stream)
    run.face.abort(["several"])
    ends = [output for output in stream if output.finish_reason is not None]
    assert {output.index for output in ends} == {0, 1}
    assert {output.finish_reason for output in ends} == {FinishReason.ABORT}
    run.wait_idle()


@shared()
def abort_is_the_last_of_a_request(run: Running) -> None:
    """What was aborted never ends in `get_output`, and is not heard of once others are that
    were added after it; these go on."""
    run.face.add(request("gone", run.engine.long_tokens))
    run.face.add(request("stays", 12))
    assert run.face.get_output().outputs
    run.face.abort(["gone"])
    run.face.add(request("later", 3))
    ended: set[str] = set()
    heard: set[str] = set()
    while len(ended) < 2:
        for output in run.face.get_output().outputs:
            heard.add(output.request_id)
            assert output.request_id != "gone" or "later" not in heard
            if output.finish_reason is not None:
                assert output.finish_reason is FinishReason.LENGTH
                ended.add(output.request_id)
    assert ended == {"stays", "later"}
    run.wait_idle()


@shared()
def abort_after_the_end(run: Running) -> None:
    """Aborting what has ended, or never was, changes nothing: the id can be used again."""
    for _ in range(2):
        assert len(run.read(3, request_id="done")) == 3
        assert run.face.abort(["done", "never there"]) == []
    run.collect(request("done", 3))
    run.face.abort(["done"])
    assert len(tokens(run.collect(request("done", 3))["done"])) == 3


@shared()
def abort_and_again(run: Running) -> None:
    """An id that is used again right after its abort names another request, which is whole."""
    for _ in range(10):
        first = run.face.generate(list(PROMPT), run.long, request_id="reused")
        next(first)
        run.face.abort(["reused"])
        assert len(run.read(3, request_id="reused")) == 3
        *_, last = first
        assert last.finish_reason is FinishReason.ABORT
    run.wait_idle()


@shared()
def leaving_a_stream_aborts_it(run: Running) -> None:
    """A stream that is closed before its end takes the request with it."""
    stream = run.face.generate(list(PROMPT), run.long)
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    run.wait_idle()
