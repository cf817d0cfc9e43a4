"""The real model over the whole path: a chat's text in, the answer's text out."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from enginecore_client.text import Detokenizer, Tokenizer
from enginecore_wire.outputs import FinishReason
from support.checkpoint import fetch_checkpoint
from support.faces import Face, params
from support.pod import Pod, client_addresses, torch_config

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

FRANCE = "What is the capital of France?"
QUESTIONS = [FRANCE, "Write a sentence about rain.", "Count to five.", "Who wrote Hamlet?"]


@pytest.fixture(scope="module")
def checkpoint() -> Path:
    return fetch_checkpoint()


@pytest.fixture(scope="module")
def tokenizer(checkpoint: Path) -> Tokenizer:
    return Tokenizer.load(checkpoint)


@pytest.fixture(scope="module")
def smollm(checkpoint: Path) -> Iterator[Pod]:
    options = ("--kv-cache-bytes", str(256 << 20), "--threads", "2", "--max-model-len", "1024")
    with Pod(torch_config(checkpoint, *options)) as started:
        yield started.wait_ready()


def test_questions_asked_at_once_are_answered(
    make_face: Callable[..., Face], smollm: Pod, tokenizer: Tokenizer
) -> None:
    face = make_face(client_addresses([smollm]))

    def ask(question: str) -> tuple[str, FinishReason | None]:
        prompt = tokenizer.encode_chat([{"role": "user", "content": question}])
        detokenizer = Detokenizer(tokenizer)
        text, reason = "", None
        sampling = tokenizer.complete(params(24, ignore_eos=False))
        for output in face.generate(prompt, sampling):
            text += detokenizer.push(output.new_token_ids)
            reason = output.finish_reason
        return text + detokenizer.finish(), reason

    alone = ask(FRANCE)
    with ThreadPoolExecutor(len(QUESTIONS)) as threads:
        together = dict(zip(QUESTIONS, threads.map(ask, QUESTIONS), strict=True))
    assert alone == ("The capital of France is Paris.", FinishReason.STOP)
    assert together[FRANCE] == alone
    assert all(text for text, _ in together.values())
