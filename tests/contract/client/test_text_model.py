"""The real SmolLM2 vocabulary: as transformers reads it, and through a stream."""

from pathlib import Path

import msgspec
import pytest

from enginecore_client import AsyncMPClient, OutputKind, SamplingParams, SyncMPClient
from enginecore_client.text import Detokenizer, Tokenizer, read_text, read_text_async
from enginecore_wire.contract import ModelConfig
from support.checkpoint import fetch_checkpoint
from support.eventually import eventually
from support.pod import Pod, client_addresses, stub_config

pytestmark = [pytest.mark.model, pytest.mark.timeout(180)]

FINAL = OutputKind.FINAL_ONLY
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is the capital of France?"},
    {"role": "assistant", "content": "Paris 🙂"},
    {"role": "user", "content": "And 2 + 2 * 31415?"},
]
TEXTS = [
    "Hello world",
    "It's 12345 and don't",
    "  spaces   here\n\n\tTab",
    "naïve café 日本語 🙂👩‍👩‍👧 Привет",
    "<|im_start|>user\nhi<|im_end|>",
    "price: $3.14, 50%",
    "def f(x):\n    return x ** 2  # ok",
    "a\u00a0b\u200bc",
]


@pytest.fixture(scope="module")
def model() -> Path:
    return fetch_checkpoint()


@pytest.fixture(scope="module")
def tokenizer(model: Path) -> Tokenizer:
    return Tokenizer.load(model)


def test_ids_equal_transformers(model: Path, tokenizer: Tokenizer) -> None:
    from transformers import AutoTokenizer  # noqa: PLC0415 - seconds to import

    theirs = AutoTokenizer.from_pretrained(model.parent, gguf_file=model.name)
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert ids == theirs.encode(text, add_special_tokens=False), text
        assert tokenizer.decode(ids) == theirs.decode(ids, skip_special_tokens=True), text
    for upto in range(1, len(MESSAGES) + 1):
        chat = MESSAGES[:upto]
        expected = theirs.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
        assert tokenizer.encode_chat(chat) == expected


async def test_a_streams_text_until_a_stop_string(tokenizer: Tokenizer) -> None:
    prompt = tokenizer.encode("one 🙂 two 日本 three STOP four")
    model = ModelConfig(path="stub", vocab_size=tokenizer.vocab_size)
    options = ("--vocab-size", "49152", "--tokens", "2000", "--token-seconds", "0.001")
    config = msgspec.structs.replace(stub_config(*options), model=model)
    params = SamplingParams(max_tokens=2000)
    with Pod(config) as pod:
        pod.wait_ready()
        async with AsyncMPClient(client_addresses([pod])) as client:
            pieces = read_text_async(
                client.generate(prompt, params), Detokenizer(tokenizer, "STOP")
            )
            assert "".join([piece async for piece in pieces]) == "one 🙂 two 日本 three "
        with SyncMPClient(client_addresses([pod])) as client:
            detokenizer = Detokenizer(tokenizer, "STOP", include_stop=True)
            text = "".join(read_text(client.generate(prompt, params), detokenizer))
        assert text == "one 🙂 two 日本 three STOP"
        with SyncMPClient(client_addresses([pod]), tokenizer=tokenizer) as client:
            wanted = SamplingParams(max_tokens=2000, n=2, stop=["STOP"], output_kind=FINAL)
            outputs = list(client.generate(prompt, wanted))
        assert {output.index for output in outputs} == {0, 1}
        assert {output.text for output in outputs} == {"one 🙂 two 日本 three "}
        assert {output.stop_reason for output in outputs} == {"STOP"}
        eventually(lambda: pod.status().in_flight == 0, "aborted")
