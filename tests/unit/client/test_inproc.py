"""InprocClient: an engine in this process behind the same books as any other."""

import gc
import threading
import weakref
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from enginecore_client import (
    ClientClosedError,
    EngineCoreOutputs,
    EngineCoreRequest,
    EngineDeadError,
    FinishReason,
    InprocClient,
    OutputKind,
    RequestRejectedError,
    RequestTimeoutError,
    SamplingParams,
    ScalingNotAvailable,
    UtilityError,
)
from enginecore_client.ops import IsSleeping
from enginecore_client.testing import FakeEngineCore

PROMPT = [7, 11, 13]
DELTA = {"output_kind": OutputKind.DELTA}


def request(name: str, count: int = 2, **fields: Any) -> EngineCoreRequest:
    return EngineCoreRequest(
        name, [*PROMPT], sampling_params=SamplingParams(max_tokens=count, **DELTA), **fields
    )


def tokens(client: InprocClient, count: int = 4, **options: Any) -> list[int]:
    stream = client.generate(PROMPT, SamplingParams(max_tokens=count, **DELTA), **options)
    return [token for output in stream for token in output.new_token_ids]


def test_get_output_computes_one_step_each_time() -> None:
    engine = FakeEngineCore()
    with InprocClient(engine) as client:
        client.add_request(request("a"))
        assert engine.steps == 0
        first, second, third = (client.get_output() for _ in range(3))
        assert [o.new_token_ids for o in first.outputs] == [[7]]
        assert [(o.request_id, o.finish_reason) for o in second.outputs] == [
            ("a", FinishReason.LENGTH)
        ]
        assert first.scheduler_stats is not None
        assert third == EngineCoreOutputs()
        assert engine.steps == 2


def test_ids_are_its_own_inside_and_the_callers_outside() -> None:
    engine = FakeEngineCore()
    with InprocClient(engine) as client:
        client.add_request(request("a", 9))
        assert tokens(client, request_id="a") == [7, 11, 13, 7]
        inside = [add.request_id for add in engine.adds]
        assert len(set(inside)) == 2
        assert all(name.startswith("a-") and len(name) == 10 for name in inside)
        assert {add.external_req_id for add in engine.adds} == {"a"}
        with pytest.raises(RequestRejectedError, match="is unfinished") as caught:
            client.add_request(request("a"))
        assert caught.value.field == "request_id"
        assert [o.request_id for o in client.get_output().outputs] == ["a"]


def test_the_engine_shares_nothing_with_the_caller() -> None:
    engine = FakeEngineCore()
    with InprocClient(engine) as client:
        mine = request("a")
        client.add_request(mine)
        mine.prompt_token_ids.clear()  # type: ignore[union-attr]
        mine.sampling_params.max_tokens = 99  # type: ignore[union-attr]
        assert engine.adds[0].prompt_token_ids == PROMPT
        assert [o.new_token_ids for o in client.get_output().outputs] == [[7]]
        assert client.get_output().outputs[0].finish_reason is FinishReason.LENGTH


def test_streams_and_get_output_get_their_own() -> None:
    engine = FakeEngineCore()
    with InprocClient(engine) as client:
        client.add_request(request("queued", 3))
        stream = client.generate(PROMPT, SamplingParams(max_tokens=3, **DELTA))
        assert next(stream).new_token_ids == [7]
        assert [o.request_id for o in client.get_output().outputs] == ["queued"]
        assert engine.steps == 1, "its first output was there already"
        assert [o.new_token_ids for o in client.get_output().outputs] == [[11]]
        assert [o.new_token_ids for o in stream] == [[11], [13]]
        assert client.get_output().outputs[0].finish_reason is FinishReason.LENGTH


def test_aborts_go_straight_to_the_engine() -> None:
    engine = FakeEngineCore()
    with InprocClient(engine) as client:
        client.add_request(request("a", 9))
        stream = client.generate(PROMPT, SamplingParams(max_tokens=9, **DELTA), "b")
        dropped = client.generate(PROMPT, SamplingParams(max_tokens=9, **DELTA), "c")
        next(stream)
        client.abort_requests(["a", "b", "never there"])
        assert [o.finish_reason for o in stream] == [FinishReason.ABORT]
        del dropped
        gc.collect()
        client.get_output()
        assert [name.partition("-")[0] for name in engine.aborts] == ["a", "b", "c"]
        assert engine.running == {}
        assert client._driver.core.unfinished == 0


WRONG = [
    ({"prompt_token_ids": [1000]}, "prompt_token_ids"),
    ({"prompt_token_ids": [1] * 200}, "prompt_token_ids"),
    ({"sampling_params": SamplingParams(temperature=-1.0)}, "sampling_params.temperature"),
    ({"sampling_params": {"n": 1}}, "sampling_params"),
    ({"request_id": 5}, "request_id"),
    ({"deadline": "soon"}, "deadline"),
]


@pytest.mark.parametrize(("fields", "field"), WRONG, ids=[field for _, field in WRONG])
def test_wrong_requests_are_refused_as_elsewhere(fields: dict[str, Any], field: str) -> None:
    engine = FakeEngineCore(max_model_len=100)
    with InprocClient(engine) as client:
        with pytest.raises(RequestRejectedError) as caught:
            client.generate(**({"prompt_token_ids": PROMPT} | fields))
        assert caught.value.field.startswith(field)
        assert engine.adds == []


def test_what_the_engine_refuses_is_raised_and_forgotten() -> None:
    engine = FakeEngineCore()
    engine.refuse = ValueError("sampling_params.watermarking: not here; leave it out")
    with InprocClient(engine) as client:
        for ask in (lambda: client.add_request(request("a")), lambda: tokens(client)):
            with pytest.raises(RequestRejectedError, match="not here") as caught:
                ask()
            assert caught.value.field == "sampling_params.watermarking"
            assert isinstance(caught.value.__cause__, ValueError)
        engine.refuse = None
        assert client._driver.core.unfinished == 0
        assert client.get_output() == EngineCoreOutputs()
        assert tokens(client) == [7, 11, 13, 7]


@pytest.mark.parametrize("abort", ["abort_requests(5)", "abort_requests('ab')", "None", "[5]"])
def test_aborts_want_ids(abort: str) -> None:
    wrong: Any = {"None": None, "[5]": [5], "abort_requests(5)": 5}.get(abort, "ab")
    with InprocClient(FakeEngineCore()) as client:
        with pytest.raises(RequestRejectedError) as caught:
            client.abort_requests(wrong)
        assert caught.value.field == "request_ids"


def test_control_calls() -> None:
    engine = FakeEngineCore()
    engine.results |= {"is_sleeping": False, "collective_rpc": [1, 2], "list_loras": [3]}
    engine.results |= {"sleep": None, "get_weight_version": RuntimeError("gone")}
    with InprocClient(engine) as client:
        assert client.get_supported_tasks() == ["generate"]
        assert client.call(IsSleeping(), engine=0) is False
        assert client.list_loras() == {3}
        assert client.collective_rpc("f", 1.0, (1,), {"a": 2}) == [1, 2]
        assert client.call_utility("is_sleeping") is False
        client.sleep(2)
        assert engine.calls[-1] == ("sleep", [2, "abort"])
        for failing, words in ((client.get_weight_version, "gone"), (client.wake_up, "no method")):
            with pytest.raises(UtilityError, match=words):
                failing()
        with pytest.raises(RequestRejectedError, match="no engine 1; engines are 0") as caught:
            client.call(IsSleeping(), engine=1)
        assert caught.value.field == "engine"
        with pytest.raises(RequestRejectedError, match="not among the calls"):
            client.call_utility("shutdown")
        with pytest.raises(ScalingNotAvailable):
            client.scale_elastic_ep(2)
        assert client.dp_engines_running() is False
        assert tokens(client) == [7, 11, 13, 7]


def test_a_pause_that_waits_computes_what_is_running() -> None:
    engine = FakeEngineCore()
    engine.results |= {"pause_scheduler": None, "sleep": None}
    with InprocClient(engine) as client:
        for pause in (lambda: client.pause_scheduler("wait"), lambda: client.sleep(0, "wait")):
            stream = client.generate(PROMPT, SamplingParams(max_tokens=5, **DELTA))
            pause()
            assert engine.running == {}
            assert [token for o in stream for token in o.new_token_ids] == [7, 11, 13, 7, 11]


def test_a_broken_engine_ends_everything_and_says_why() -> None:
    engine = FakeEngineCore()
    cause = MemoryError("no blocks")

    def breaks() -> None:
        raise cause

    with InprocClient(engine) as client:
        client.add_request(request("a", 9))
        stream = client.generate(PROMPT, SamplingParams(max_tokens=9, **DELTA))
        next(stream)
        assert not client.engine_dead
        engine.before_step = breaks
        client.get_output()
        for read in (client.get_output, client.get_output, lambda: next(stream)):
            with pytest.raises(EngineDeadError, match=r"broke: MemoryError\('no blocks'\)") as dead:
                read()
            assert dead.value.__cause__ is cause
        assert client.engine_dead
        for ask in (client.is_sleeping, lambda: tokens(client)):
            with pytest.raises(EngineDeadError):
                ask()
        assert client._driver.core.unfinished == 0
    assert engine.ended == 1


def test_an_interrupt_in_a_step_is_the_callers() -> None:
    engine = FakeEngineCore()
    presses = iter([KeyboardInterrupt])

    def press() -> None:
        for key in presses:
            raise key

    engine.before_step = press
    with InprocClient(engine) as client:
        stream = client.generate(PROMPT, SamplingParams(max_tokens=4, **DELTA))
        with pytest.raises(KeyboardInterrupt):
            next(stream)
        assert [token for o in stream for token in o.new_token_ids] == [7, 11, 13, 7]


def test_closing_ends_everything_and_frees_the_engine() -> None:
    engine = FakeEngineCore()
    gone = weakref.ref(engine)
    client = InprocClient(engine)
    client.add_request(request("a", 9))
    stream = client.generate(PROMPT, SamplingParams(max_tokens=9, **DELTA))
    client.close()
    client.close()
    assert engine.ended == 1
    del engine
    gc.collect()
    assert gone() is None
    for ask in (
        lambda: next(stream),
        client.get_output,
        client.is_sleeping,
        lambda: tokens(client),
        lambda: client.abort_requests([]),
        lambda: client.engine_core,
    ):
        with pytest.raises(ClientClosedError):
            ask()


def test_sequences_without_a_name_get_one_together() -> None:
    engine = FakeEngineCore()
    request = EngineCoreRequest(
        "", [*PROMPT], sampling_params=SamplingParams(n=3, max_tokens=20, **DELTA)
    )
    with InprocClient(engine) as client:
        stream = client.generate(request)
        names = {next(stream).request_id for _ in range(3)}
        assert names == {stream.request_id}
        assert client.abort_requests([*names]) == [stream.request_id]
        assert len(engine.aborts) == 3
        assert [o.finish_reason for o in stream][-3:] == [FinishReason.ABORT] * 3
    assert request.request_id == ""


def test_a_client_that_is_closed_during_a_step_ends_its_streams() -> None:
    engine = FakeEngineCore()
    client = InprocClient(engine)
    stream = client.generate(PROMPT, SamplingParams(max_tokens=20, **DELTA))
    next(stream)
    engine.before_step = client.close  # as the handler of a signal may
    with pytest.raises(ClientClosedError):
        next(stream)


def test_an_engine_that_cannot_shut_down_is_let_go_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = FakeEngineCore()
    monkeypatch.setattr(engine, "shutdown", lambda: 1 // 0)
    registry = CollectorRegistry()
    client = InprocClient(engine, registry=registry)
    stream = client.generate(PROMPT, SamplingParams(max_tokens=9, **DELTA))
    client.close()
    assert "the engine's shutdown failed" in caplog.text
    assert list(registry.collect()) == []
    with pytest.raises(ClientClosedError):
        next(stream)


def test_a_dropped_client_shuts_its_engine_down() -> None:
    engine = FakeEngineCore()
    client = InprocClient(engine)
    client.add_request(request("a"))
    del client
    gc.collect()
    assert engine.ended == 1


def test_a_constructor_that_fails_shuts_the_engine_down() -> None:
    registry = CollectorRegistry()
    engine = FakeEngineCore()
    with InprocClient(FakeEngineCore(), registry=registry):
        with pytest.raises(ValueError, match="registry: it has"):
            InprocClient(engine, registry=registry)
        assert engine.ended == 1
    with pytest.raises(ZeroDivisionError):
        InprocClient(lambda: 1 // 0)  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize("option", [{"model_name": 5}, {"registry": "x"}, {"tokenizer": "gpt2"}])
def test_options_of_another_kind_are_named(option: dict[str, Any]) -> None:
    engine = FakeEngineCore()
    (field,) = option
    with pytest.raises(RequestRejectedError, match=f"^{field}: "):
        InprocClient(engine, **option)
    assert engine.ended == 1


def test_a_deadline_ends_the_request() -> None:
    engine = FakeEngineCore()
    engine.paused = True
    with InprocClient(engine) as client:
        stream = client.generate(PROMPT, SamplingParams(max_tokens=9), "slow", deadline=0.1)
        with pytest.raises(RequestTimeoutError, match="'slow' was not finished"):
            next(stream)
        assert engine.running == {}


def test_threads_share_it_and_one_at_a_time_is_served() -> None:
    engine = FakeEngineCore()
    inside = threading.Semaphore(1)

    def alone() -> None:
        assert inside.acquire(blocking=False), "two threads in one step"
        inside.release()

    engine.before_step = alone
    results: list[list[int]] = []
    with InprocClient(engine) as client:

        def work() -> None:
            for _ in range(20):
                results.append(tokens(client))

        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == [[7, 11, 13, 7]] * 120


def test_metrics() -> None:
    registry = CollectorRegistry()
    with InprocClient(FakeEngineCore(), registry=registry, model_name="m") as client:
        tokens(client, 3)
        labels = {"model_name": "m", "engine": "0"}
        value = registry.get_sample_value
        assert value("enginecore_client_engine_ready", labels) == 1
        assert value("enginecore_client_generation_tokens_total", labels) == 3
        assert value("enginecore_client_requests_in_flight", labels) == 0
        assert value("vllm:num_requests_running", labels) == 0
    assert list(registry.collect()) == []


def test_n_and_output_kinds() -> None:
    with InprocClient(FakeEngineCore()) as client:
        several = list(client.generate(PROMPT, SamplingParams(max_tokens=2, n=3)))
        assert {output.index for output in several} == {0, 1, 2}  # type: ignore[attr-defined]
        final = SamplingParams(max_tokens=3, output_kind=OutputKind.FINAL_ONLY)
        (only,) = client.generate(PROMPT, final)
        assert only.new_token_ids == PROMPT


def test_nothing_is_left_after_thousands_of_requests() -> None:
    engine = FakeEngineCore()
    with InprocClient(engine) as client:
        for number in range(3000):
            if number % 3 == 0:
                client.add_request(request(str(number)))
            elif number % 3 == 1:
                next(client.generate(PROMPT, SamplingParams(max_tokens=50, **DELTA)))
            else:
                client.abort_requests([str(number - 2)])
        while client.get_output() != EngineCoreOutputs():
            pass
        assert client._driver.core.unfinished == 0
        assert engine.running == {}
