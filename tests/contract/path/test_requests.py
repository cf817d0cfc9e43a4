"""Requests, calls and stats: every client, every engine."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import pytest
from prometheus_client import CollectorRegistry

from enginecore_client.errors import RequestRejectedError, UtilityError
from enginecore_wire.outputs import EngineCoreOutput, FinishReason
from enginecore_wire.requests import EngineCoreRequest
from support.eventually import eventually
from support.faces import Face, params
from support.pod import Pod, client_addresses

PROMPTS = [[(7 * i + j) % 250 + 1 for j in range(3 + 5 * i)] for i in range(24)]


def tokens(outputs: Iterable[EngineCoreOutput]) -> list[int]:
    return [token for output in outputs for token in output.new_token_ids]


@pytest.fixture
def face(make_face: Callable[..., Face], pod: Pod, registry: CollectorRegistry) -> Face:
    return make_face(client_addresses([pod]), registry=registry)


def request(name: str, max_tokens: int, prompt: list[int] | None = None) -> EngineCoreRequest:
    return EngineCoreRequest(name, prompt or [1, 2, 3], sampling_params=params(max_tokens))


def test_stream_is_whole_and_ends_with_its_reason(face: Face, pod: Pod) -> None:
    outputs = list(face.generate([5, 6, 7], params(20), request_id="mine"))
    assert {output.request_id for output in outputs} == {"mine"}
    assert len(tokens(outputs)) == 20
    assert [output.finish_reason for output in outputs[:-1]] == [None] * (len(outputs) - 1)
    assert outputs[-1].finish_reason == FinishReason.LENGTH
    if pod.config.runtime.type == "custom":
        assert tokens(outputs) == [5, 6, 7] * 6 + [5, 6]


def test_concurrent_streams_equal_those_alone(face: Face, pod: Pod) -> None:
    def run(prompt: list[int]) -> list[int]:
        return tokens(face.generate(prompt, params(30)))

    alone = [run(prompt) for prompt in PROMPTS[:6]]
    with ThreadPoolExecutor(len(PROMPTS)) as threads:
        together = list(threads.map(run, PROMPTS))
    assert together[:6] == alone
    assert all(len(stream) == 30 for stream in together)
    eventually(lambda: pod.status().in_flight == 0)


def test_get_output_gives_every_token_of_every_request(face: Face) -> None:
    wanted = {f"request-{i}": 5 + i for i in range(8)}
    for name, count in wanted.items():
        face.add(request(name, count))
    got: dict[str, list[int]] = {name: [] for name in wanted}
    finished: dict[str, FinishReason] = {}
    while len(finished) < len(wanted):
        message = face.get_output()
        assert message.engine_index == 0
        for output in message.outputs:
            assert output.request_id not in finished
            got[output.request_id] += output.new_token_ids
            if output.finish_reason is not None:
                finished[output.request_id] = output.finish_reason
    assert {name: len(found) for name, found in got.items()} == wanted
    assert set(finished.values()) == {FinishReason.LENGTH}


def test_abort_ends_the_stream_and_the_engines_work(face: Face, pod: Pod) -> None:
    stream = face.generate([1, 2, 3], params(2000), request_id="long")
    first = next(stream)
    assert first.finish_reason is None
    face.abort(["long", "unknown"])
    rest = list(stream)
    assert rest[-1].finish_reason == FinishReason.ABORT
    assert len(tokens([first, *rest])) < 2000
    eventually(lambda: pod.status().in_flight == 0)
    assert len(tokens(face.generate([1, 2, 3], params(4), request_id="long"))) == 4


def test_leaving_a_stream_early_aborts_it(face: Face, pod: Pod) -> None:
    stream = face.generate([1, 2, 3], params(2000))
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    eventually(lambda: pod.status().in_flight == 0)


def test_calls_are_answered_while_streams_run(face: Face) -> None:
    stream = face.generate([1, 2, 3], params(300))
    next(stream)
    assert face.call("get_supported_tasks") == ["generate"]
    assert face.call("is_sleeping") is False
    assert len(tokens(stream)) >= 298


@pytest.mark.parametrize(
    ("method", "error"),
    [("no_such_method", RequestRejectedError), ("add_lora", UtilityError)],
)
def test_call_that_fails_harms_nothing(method: str, error: type[Exception], face: Face) -> None:
    arguments = [["adapter", 1, "/nowhere"]] if method == "add_lora" else []
    with pytest.raises(error):
        face.call(method, *arguments)
    assert len(tokens(face.generate([1, 2, 3], params(4)))) == 4


@pytest.mark.parametrize(
    ("prompt", "field"),
    [
        ([1, 5000], "prompt_token_ids"),
        ([1, -1], "prompt_token_ids"),
        ([], "prompt_token_ids"),
        ([1] * 4000, "prompt_token_ids"),
    ],
    ids=["past the vocabulary", "negative", "empty", "too long"],
)
def test_bad_prompt_is_refused_by_name_and_harms_nothing(
    prompt: list[int], field: str, face: Face
) -> None:
    with pytest.raises(RequestRejectedError) as refused:
        list(face.generate(prompt, params(4)))
    assert refused.value.field.startswith(field)
    assert len(tokens(face.generate([1, 2, 3], params(4)))) == 4


def test_stats_reach_the_gauge_before_get_output_returns(
    face: Face, pod: Pod, registry: CollectorRegistry
) -> None:
    labels = {"model_name": pod.config.model.served_name, "engine": "0"}
    face.add(request("one", 50))
    message = face.get_output()
    while message.scheduler_stats is None:
        message = face.get_output()
    expected = message.scheduler_stats.num_running_reqs
    assert registry.get_sample_value("vllm:num_requests_running", labels) == expected
    face.abort(["one"])


def test_idle_engine_reads_zero_and_counts_what_it_did(
    face: Face, pod: Pod, registry: CollectorRegistry
) -> None:
    labels = {"model_name": pod.config.model.served_name, "engine": "0"}
    assert len(tokens(face.generate([1, 2, 3], params(25)))) == 25
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        eventually(lambda name=name: registry.get_sample_value(f"vllm:{name}", labels) == 0)
    counted = registry.get_sample_value("enginecore_client_generation_tokens_total", labels)
    assert counted == 25
    assert 'vllm:num_requests_running{engine="0"' in pod.metrics()


def test_engine_that_never_worked_for_this_client_reads_zero(
    face: Face, pod: Pod, registry: CollectorRegistry
) -> None:
    labels = {"model_name": pod.config.model.served_name, "engine": "0"}
    eventually(lambda: registry.get_sample_value("vllm:num_requests_running", labels) == 0)
