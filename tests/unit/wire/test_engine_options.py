"""What an engine's command line says of it."""

import pytest

from enginecore_wire.engine_options import max_logprobs


@pytest.mark.parametrize(
    ("words", "most"),
    [
        ([], 20),
        (["vllm", "serve", "m", "--headless"], 20),
        (["--max-logprobs", "50"], 50),
        (["--max-logprobs=50"], 50),
        (["--max_logprobs", "50"], 50),
        (["--max_logprobs=0", "--seed", "3"], 0),
        (["--max-logprobs", "-1"], -1),
        (["--max-logprobs", "-7"], -1),
        (["--max-logprobs", "5", "--max-logprobs", "6"], 6),
        (["--max-logprobs", "many"], 20),
        (["--max-logprobs"], 20),
        (["--served-model-name", "max-logprobs", "9"], 20),
    ],
)
def test_max_logprobs(words: list[str], most: int) -> None:
    assert max_logprobs(words) == most
