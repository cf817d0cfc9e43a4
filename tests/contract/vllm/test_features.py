"""What a real vLLM offers, asked of it by our clients over every transport."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from safetensors import safe_open

from enginecore_client.errors import RequestRejectedError, UtilityError
from enginecore_client.text import Tokenizer
from enginecore_wire.outputs import EngineCoreOutput, FinishReason
from enginecore_wire.requests import (
    EngineCoreRequest,
    LoRARequest,
    SamplingParams,
    StructuredOutputs,
)
from enginecore_wire.tensors import Tensor
from support.faces import Face, params
from support.lora_adapter import write_lora_adapter
from support.vllm_engines import EngineRoom

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(900),
    pytest.mark.may_leak("processes", "threads", "sockets", reason="engines are shared"),
]

TEXT = "The capital of France is"
SHARED = list(range(1000, 1300))
"""A prompt of several blocks; vLLM's have 128 tokens on a CPU."""


def outputs_of(
    face: Face,
    prompt: Sequence[int] | EngineCoreRequest,
    sampling: SamplingParams | None = None,
    rank: int = 0,
) -> list[EngineCoreOutput]:
    """Return the outputs of one request on one engine."""
    if isinstance(prompt, EngineCoreRequest):
        return list(face.generate(prompt, None))
    assert sampling is not None
    return list(face.generate(prompt, sampling, data_parallel_rank=rank))


def tokens_of(outputs: Sequence[EngineCoreOutput]) -> list[int]:
    return [token for output in outputs for token in output.new_token_ids]


def test_text_is_continued_token_by_token(face: Face, tokenizer: Tokenizer) -> None:
    outputs = outputs_of(face, tokenizer.encode(TEXT), params(8))
    assert "Paris" in tokenizer.decode(tokens_of(outputs))
    assert [len(output.new_token_ids) for output in outputs] == [1] * 8
    assert outputs[-1].finish_reason is FinishReason.LENGTH


def test_end_of_sequence_stops(face: Face, tokenizer: Tokenizer) -> None:
    prompt = tokenizer.encode_chat([{"role": "user", "content": "What is the capital of France?"}])
    sampling = tokenizer.complete(params(40, ignore_eos=False))
    outputs = outputs_of(face, prompt, sampling)
    assert tokenizer.decode(tokens_of(outputs)) == "The capital of France is Paris."
    assert outputs[-1].finish_reason is FinishReason.STOP
    assert tokens_of(outputs)[-1] == sampling.eos_token_id


def test_seeded_sampling_repeats_itself(face: Face, tokenizer: Tokenizer) -> None:
    sampling = params(12, temperature=1.0, top_p=0.9, seed=11)
    first, again, other = (
        tokens_of(outputs_of(face, tokenizer.encode(TEXT), chosen))
        for chosen in (sampling, sampling, params(12, temperature=1.0, top_p=0.9, seed=12))
    )
    assert first == again != other


def test_logprobs_of_sampled_tokens(face: Face, tokenizer: Tokenizer) -> None:
    outputs = outputs_of(face, tokenizer.encode(TEXT), params(5, logprobs=3))
    for output in outputs:
        logprobs = output.new_logprobs
        assert logprobs is not None
        assert logprobs.token_ids.shape == logprobs.values.shape == (1, 4)
        (ids,), (values,) = logprobs.token_ids.tolist(), logprobs.values.tolist()
        assert ids[0] == ids[1] == output.new_token_ids[0], "greedy takes the most likely"
        assert values[0] == values[1] <= 0
        assert values[1:] == sorted(values[1:], reverse=True)
        assert logprobs.ranks.tolist() == [1]


def test_prompt_logprobs(face: Face, tokenizer: Tokenizer) -> None:
    prompt = tokenizer.encode(TEXT) * 20
    outputs = outputs_of(face, prompt, params(1, prompt_logprobs=4))
    (logprobs,) = [o.new_prompt_logprobs for o in outputs if o.new_prompt_logprobs is not None]
    assert logprobs.token_ids.shape == logprobs.values.shape == (len(prompt) - 1, 5)
    assert [row[0] for row in logprobs.token_ids.tolist()] == prompt[1:]
    assert all(value <= 0 for row in logprobs.values.tolist() for value in row)
    assert all(rank >= 1 for rank in logprobs.ranks.tolist())
    best = logprobs.values.tolist()[-1][0]
    assert math.exp(best) > 0.5, "what was said many times is expected again"


def test_structured_output_holds_to_the_grammar(face: Face, tokenizer: Tokenizer) -> None:
    grammar = StructuredOutputs(grammar='root ::= "Berlin" | "Lyon"', backend="xgrammar")
    sampling = tokenizer.complete(params(8, structured_outputs=grammar, ignore_eos=False))
    outputs = outputs_of(face, tokenizer.encode(TEXT), sampling)
    assert tokenizer.decode(tokens_of(outputs)) in ("Berlin", "Lyon")
    assert outputs[-1].finish_reason is FinishReason.STOP


@pytest.mark.parametrize(
    "choice",
    [
        ["Berlin", "Lyon"],
        ['say "no"', "a\\nb"],
        ["first\nsecond\t.", "Zürich", "日本"],
        [" #|", "::="],
    ],
    ids=str,
)
def test_structured_output_is_one_of_the_choices(
    face: Face, tokenizer: Tokenizer, choice: list[str]
) -> None:
    grammar = StructuredOutputs(choice=choice, backend="xgrammar")
    sampling = tokenizer.complete(params(24, structured_outputs=grammar, ignore_eos=False))
    outputs = outputs_of(face, tokenizer.encode(TEXT), sampling)
    assert tokenizer.decode(tokens_of(outputs)) in choice
    assert outputs[-1].finish_reason is FinishReason.STOP


def test_structured_output_holds_to_the_schema(face: Face, tokenizer: Tokenizer) -> None:
    schema = {"type": "object", "properties": {"city": {"enum": ["Berlin", "Lyon"]}},
              "required": ["city"], "additionalProperties": False}  # fmt: skip
    grammar = StructuredOutputs(json=schema, backend="xgrammar")
    sampling = tokenizer.complete(params(60, structured_outputs=grammar, ignore_eos=False))
    text = tokenizer.decode(tokens_of(outputs_of(face, tokenizer.encode("JSON:"), sampling)))
    assert json.loads(text)["city"] in ("Berlin", "Lyon")


def test_a_grammar_without_a_backend_is_refused_before_it_is_sent(face: Face) -> None:
    with pytest.raises(RequestRejectedError) as caught:
        outputs_of(face, [1, 2], params(4, structured_outputs=StructuredOutputs(choice=["a"])))
    assert caught.value.field == "sampling_params.structured_outputs._backend"


def test_embeddings_of_a_prompt_stand_for_its_tokens(
    face: Face, room: EngineRoom, tokenizer: Tokenizer
) -> None:
    prompt = tokenizer.encode(TEXT)
    with safe_open(room.model / "model.safetensors", framework="pt") as file:
        rows = file.get_tensor("model.embed_tokens.weight")[prompt].float()
    request = EngineCoreRequest(
        "embeddings", None, sampling_params=params(8), prompt_embeds=Tensor.of(rows),
        data_parallel_rank=0,
    )  # fmt: skip
    assert tokens_of(outputs_of(face, request)) == tokens_of(outputs_of(face, prompt, params(8)))


def test_prefix_cache_is_used_and_reset(face: Face) -> None:
    def cached() -> int:
        outputs = outputs_of(face, SHARED, params(2))
        (stats,) = [o.prefill_stats for o in outputs if o.prefill_stats is not None]
        assert stats.num_prompt_tokens == len(SHARED)
        return stats.num_cached_tokens

    assert face.call("reset_prefix_cache", engine=0) is True
    assert cached() == 0
    assert cached() > 0
    assert face.call("reset_prefix_cache", engine=0) is True
    assert cached() == 0


def test_prefix_cache_is_not_reset_under_a_request(face: Face) -> None:
    stream = face.generate(SHARED, params(500), data_parallel_rank=0)
    next(stream)
    assert face.call("reset_prefix_cache", engine=0) is False
    assert face.call("reset_prefix_cache", True, False, engine=0) is True
    next(stream)
    stream.close()  # type: ignore[attr-defined]


def test_pause_keeps_requests_and_resume_goes_on(face: Face) -> None:
    whole = tokens_of(outputs_of(face, [5, 6, 7], params(60)))
    stream = face.generate([5, 6, 7], params(60), data_parallel_rank=0)
    first = next(stream)
    face.call("pause_scheduler", "keep", False, engine=0)
    assert face.call("is_scheduler_paused", engine=0) is True
    assert face.call("is_sleeping", engine=0) is True
    face.call("resume_scheduler", engine=0)
    assert face.call("is_scheduler_paused", engine=0) is False
    assert tokens_of([first, *stream]) == whole


def test_pause_aborts_requests(face: Face) -> None:
    stream = face.generate([5, 6, 7], params(500), data_parallel_rank=0)
    next(stream)
    face.call("pause_scheduler", "abort", True, engine=0)
    *_, last = stream
    assert last.finish_reason is FinishReason.ABORT
    face.call("resume_scheduler", engine=0)
    assert len(tokens_of(outputs_of(face, [5, 6, 7], params(3)))) == 3


def test_supported_tasks_and_caches(face: Face) -> None:
    assert "generate" in face.call("get_supported_tasks")
    assert face.call("reset_mm_cache") is None
    assert face.call("reset_encoder_cache") is None
    assert face.call("get_weight_version") == face.call("get_weight_version", engine=1)


def test_a_failed_call_says_what_the_engine_says(face: Face) -> None:
    with pytest.raises(UtilityError, match="no_such_method"):
        face.call("collective_rpc", "no_such_method", engine=0)
    assert face.call("collective_rpc", "check_health", engine=0) == [None]
    assert len(tokens_of(outputs_of(face, [1, 2, 3], params(2)))) == 2


def test_sleep_and_wake_up(face: Face) -> None:
    face.call("sleep", 1, "abort", engine=0)
    assert face.call("is_sleeping", engine=0) is True
    stream = face.generate([5, 6, 7], params(3), data_parallel_rank=0)
    assert face.call("wake_up", None, engine=0) is True
    assert face.call("is_sleeping", engine=0) is False
    assert len(tokens_of(list(stream))) == 3, "what was sent to a sleeping engine waits"


def test_adapters_are_loaded_listed_used_and_removed(
    face: Face, room: EngineRoom, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    adapter = LoRARequest("adapter", 7, str(write_lora_adapter(tmp_path / "adapter", room.model)))
    prompt = tokenizer.encode(TEXT)
    plain = tokens_of(outputs_of(face, prompt, params(8)))
    assert face.call("list_loras", engine=0) == []
    assert face.call("add_lora", adapter, engine=0) is True
    assert face.call("list_loras", engine=0) == [7]
    assert face.call("pin_lora", 7, engine=0) is True
    request = EngineCoreRequest(
        "adapted", prompt, sampling_params=params(8), lora_request=adapter, data_parallel_rank=0
    )
    assert tokens_of(outputs_of(face, request)) != plain
    assert tokens_of(outputs_of(face, prompt, params(8))) == plain
    assert face.call("remove_lora", 7, engine=0) is True
    assert face.call("list_loras", engine=0) == []
