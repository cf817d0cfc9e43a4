"""The torch engine in this process, and transformers beside it to say what is right."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm
from transformers import AutoModelForCausalLM, GgufConfig
from transformers.utils import logging as transformers_logging

from enginecore_torch.build import build_engine
from enginecore_torch.config import EngineConfig
from enginecore_torch.core import EngineCore
from enginecore_wire.outputs import EngineCoreOutput
from enginecore_wire.requests import EngineCoreRequest, SamplingParams

THREADS = 1
"""Two that wait for each other get nothing done on a machine that is busy otherwise."""

STEP_LIMIT = 20_000

MAX_POSITIONS = 256
"""Of the tiny model that unit tests of the core share."""


def make_core(model: Path, **settings: Any) -> EngineCore:
    """Return an engine over `model`; `settings` are fields of EngineConfig."""
    return build_engine(EngineConfig(model=model, threads=THREADS, **settings)).core


def request(name: str, prompt: Sequence[int], **params: Any) -> EngineCoreRequest:
    """Return a request; greedy and without an end of its own unless `params` say otherwise."""
    chosen = {"temperature": 0.0, "ignore_eos": True, "max_tokens": 16, **params}
    return EngineCoreRequest(name, list(prompt), sampling_params=SamplingParams(**chosen))


def run(core: EngineCore, *requests: EngineCoreRequest) -> dict[str, list[EngineCoreOutput]]:
    """Compute `requests` to their end; return the outputs of each."""
    outputs: dict[str, list[EngineCoreOutput]] = {r.request_id: [] for r in requests}
    for each in requests:
        core.add_request(each)
    for _ in range(STEP_LIMIT):
        if not core.has_work():
            return outputs
        for message in core.step().values():
            for output in message.outputs:
                outputs[output.request_id].append(output)
    raise AssertionError(f"not done after {STEP_LIMIT} steps")


def tokens_of(outputs: Sequence[EngineCoreOutput]) -> list[int]:
    """Return the generated tokens of one request."""
    return [token for output in outputs for token in output.new_token_ids]


def generate(
    core: EngineCore, prompts: Mapping[str, Sequence[int]], **params: Any
) -> dict[str, list[int]]:
    """Compute all `prompts` together; return the generated tokens of each."""
    done = run(core, *[request(name, prompt, **params) for name, prompt in prompts.items()])
    return {name: tokens_of(outputs) for name, outputs in done.items()}


class Reference:
    """A model as transformers computes it, in float32."""

    def __init__(self, directory: Path, gguf_file: str | None = None) -> None:
        tqdm.monitor_interval = 0  # its thread would outlive the test
        transformers_logging.disable_progress_bar()
        transformers_logging.set_verbosity_error()
        torch.set_num_threads(THREADS)
        self.model = AutoModelForCausalLM.from_pretrained(
            directory,
            gguf_file=gguf_file,
            dtype=torch.float32,
            quantization_config=GgufConfig(dequantize=True) if gguf_file else None,
            local_files_only=True,
        ).eval()

    def greedy_along(self, prompt: Sequence[int], tokens: Sequence[int]) -> list[int]:
        """Return what is most likely in the place of each of `tokens`, given all before it.

        It equals `tokens` exactly if they are what greedy decoding gives.
        """
        logprobs = self.logprobs([*prompt, *tokens])
        best: list[int] = logprobs[len(prompt) - 1 : -1].argmax(dim=-1).tolist()
        return best

    @torch.inference_mode()
    def logprobs(self, tokens: Sequence[int]) -> torch.Tensor:
        """Return log-probabilities of each next token, shape [tokens, vocab_size]."""
        logits = self.model(torch.tensor([list(tokens)]), use_cache=False).logits[0]
        return torch.log_softmax(logits.float(), dim=-1)
