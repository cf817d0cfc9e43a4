"""InprocClient over the torch engine: the tokens, control and end of any other client."""

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from enginecore_client import (
    EngineCoreOutputs,
    EngineCoreRequest,
    FinishReason,
    InprocClient,
    OutputKind,
    RequestRejectedError,
    SamplingParams,
    UtilityError,
)
from enginecore_wire.requests import StructuredOutputs
from support.tiny_llama import write_tiny_llama
from support.torch_runs import generate, make_core

PROMPT = [5, 6, 7, 8]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"), max_positions=256)


@pytest.fixture
def client(model: Path) -> Iterator[InprocClient]:
    with InprocClient(lambda: make_core(model)) as running:
        yield running


def greedy(count: int) -> SamplingParams:
    return SamplingParams(
        temperature=0.0, ignore_eos=True, max_tokens=count, output_kind=OutputKind.DELTA
    )


def test_more_tokens_than_fit_end_with_the_context(model: Path) -> None:
    with InprocClient(lambda: make_core(model, max_model_len=64)) as client:
        for limit in (1_000_000, None):
            params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=limit)
            *_, last = client.generate(PROMPT, params)
            assert len(PROMPT) + len(last.new_token_ids) == 64
            assert last.finish_reason is FinishReason.LENGTH


def test_logprobs_as_plain_numbers(client: InprocClient) -> None:
    params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=3, logprobs=2)
    *_, last = client.generate(PROMPT, params)
    assert last.new_logprobs is not None
    positions = last.new_logprobs.positions()
    assert [position.token_id for position in positions] == last.new_token_ids
    for token_id, logprob, rank, others in positions:
        assert (rank, others[0]) == (1, (token_id, logprob))
        assert logprob > others[1][1]


def test_the_tokens_are_the_engines(client: InprocClient, model: Path) -> None:
    prompts = {"a": PROMPT, "b": [9, 10], "c": [11] * 40}
    expected = generate(make_core(model), prompts, max_tokens=12)
    for name, prompt in prompts.items():
        client.add_request(EngineCoreRequest(name, prompt, sampling_params=greedy(12)))
    streams = {name: client.generate(prompt, greedy(12)) for name, prompt in prompts.items()}
    streamed = {name: [t for o in s for t in o.new_token_ids] for name, s in streams.items()}
    queued: dict[str, list[int]] = {name: [] for name in prompts}
    ended: set[str] = set()
    while len(ended) < len(prompts):
        for output in client.get_output().outputs:
            queued[output.request_id] += output.new_token_ids
            if output.finish_reason is not None:
                ended.add(output.request_id)
    assert streamed == queued == expected
    assert client.get_output() == EngineCoreOutputs()


def test_control(client: InprocClient) -> None:
    assert client.get_supported_tasks() == ["generate"]
    assert client.list_loras() == set()
    assert client.is_sleeping() is False
    stream = client.generate(PROMPT, greedy(30))
    next(stream)
    client.pause_scheduler("wait")
    assert client.is_scheduler_paused() is True
    assert [o.finish_reason for o in stream][-1] is FinishReason.LENGTH
    client.resume_scheduler()
    stream = client.generate(PROMPT, greedy(30))
    next(stream)
    assert client.reset_prefix_cache() is False
    client.sleep(0)
    assert client.is_sleeping() is True
    assert [o.finish_reason for o in stream] == [FinishReason.ABORT]
    assert client.wake_up() is True
    assert client.reset_prefix_cache() is True
    client.execute_dummy_batch()
    assert client.get_weight_version() == "default"
    with pytest.raises(UtilityError, match="level: got 1"):
        client.sleep(1)


def test_what_the_engine_cannot_do_is_refused(client: InprocClient) -> None:
    grammar = StructuredOutputs(regex="a", backend="xgrammar")
    with pytest.raises(RequestRejectedError) as caught:
        client.generate(PROMPT, SamplingParams(structured_outputs=grammar))
    assert caught.value.field.startswith("sampling_params.structured_outputs")
    assert client.engine_core.has_work() is False


def test_closing_frees_the_engine(model: Path) -> None:
    client = InprocClient(lambda: make_core(model))
    gone = weakref.ref(client.engine_core)
    next(client.generate(PROMPT, greedy(50)))
    client.close()
    gc.collect()
    assert gone() is None
