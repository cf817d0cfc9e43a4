"""How many log-probabilities a request may ask for: as many as its engine was told to give."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from enginecore_client import (
    EngineCommand,
    EngineCoreOutput,
    NativeOptions,
    RequestRejectedError,
    SamplingParams,
    SyncMPClient,
)
from support.faces import Face
from support.pod import Pod, client_addresses

PROMPT = [1, 2, 3]


def asking(count: int) -> SamplingParams:
    return SamplingParams(max_tokens=1, temperature=0.0, logprobs=count)


def candidates(outputs: list[EngineCoreOutput]) -> int:
    """Return of how many tokens the last output tells, the one that was taken included."""
    logprobs = outputs[-1].new_logprobs
    assert logprobs is not None
    return int(logprobs.token_ids.shape[1])


@pytest.mark.parametrize(("options", "most"), [((), 20), (("--max-logprobs", "30"), 30)])
def test_through_a_pod(
    make_pod: Callable[..., Pod],
    make_face: Callable[..., Face],
    options: tuple[str, ...],
    most: int,
) -> None:
    pod = make_pod(*options, torch=True)
    face = make_face(client_addresses([pod]))
    assert candidates(list(face.generate(PROMPT, asking(most)))) == most + 1
    with pytest.raises(RequestRejectedError, match=f"logprobs: got {most + 1}.*0 to {most}"):
        list(face.generate(PROMPT, asking(most + 1)))


@pytest.mark.parametrize(
    ("options", "native", "most"),
    [
        ((), {}, 20),
        (("--max-logprobs=30",), {}, 30),
        (("--max-logprobs=30",), {"max_logprobs": 5}, 5),
    ],
)
def test_of_an_engine_that_the_client_starts(
    tiny_llama: Path, options: tuple[str, ...], native: dict[str, Any], most: int
) -> None:
    command = EngineCommand.torch(str(tiny_llama), "--threads", "1", *options)
    with SyncMPClient(engine_command=command, native=NativeOptions(**native)) as client:
        assert candidates(list(client.generate(PROMPT, asking(most)))) == most + 1
        with pytest.raises(RequestRejectedError, match=f"logprobs: got {most + 1}.*0 to {most}"):
            list(client.generate(PROMPT, asking(most + 1)))
