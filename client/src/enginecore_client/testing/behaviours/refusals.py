"""What is wrong is refused before anything is sent, by the field's name."""

from collections.abc import Callable
from typing import Any, Final

import pytest

from enginecore_client.errors import RequestRejectedError
from enginecore_client.testing.behaviours._registry import OUTSIDE, Running, shared
from enginecore_client.testing.faces import params
from enginecore_wire.requests import EngineCoreRequest

FAR_TOO_LONG: Final = 300_000

REQUESTS: Final[list[tuple[str, dict[str, Any]]]] = [
    ("prompt_token_ids", {"prompt_token_ids": []}),
    ("prompt_token_ids", {"prompt_token_ids": [1, -1]}),
    ("prompt_token_ids", {"prompt_token_ids": ["a"]}),
    ("prompt_token_ids", {"prompt_token_ids": [1] * FAR_TOO_LONG}),
    ("prompt_token_ids", {"prompt_token_ids": None}),
    ("request_id", {"request_id": 5}),
    ("cache_salt", {"cache_salt": 5}),
    ("sampling_params", {"sampling_params": None}),
    ("sampling_params.max_tokens", {"sampling_params": params(0)}),
    ("sampling_params.min_tokens", {"sampling_params": params(4, min_tokens=5)}),
    ("sampling_params.temperature", {"sampling_params": params(4, temperature=5.0)}),
    ("sampling_params.temperature", {"sampling_params": params(4, temperature=-1.0)}),
    ("sampling_params.top_p", {"sampling_params": params(4, top_p=7.0)}),
    ("sampling_params.seed", {"sampling_params": params(4, seed="x")}),
    ("sampling_params.logprobs", {"sampling_params": params(4, logprobs=-5)}),
    ("sampling_params.stop_token_ids", {"sampling_params": params(4, stop_token_ids=[-1])}),
]
"""A field, and fields of a request in which it is wrong."""

CALLS: Final[list[tuple[str, Callable[[Running], Any]]]] = [
    ("method", lambda run: run.face.call("no_such_method")),
    ("method", lambda run: run.face.call("shutdown")),
    ("method", lambda run: run.face.call("__class__")),
    ("args[0]", lambda run: run.face.call("collective_rpc", b"\x80pickle")),
    ("args[0]", lambda run: run.face.call("collective_rpc", "_private")),
    ("engine", lambda run: run.face.call("is_sleeping", engine=7)),
    ("request_ids", lambda run: run.face.abort("one")),
    ("request_ids", lambda run: run.face.abort([5])),  # type: ignore[list-item]
]
"""A field, and a call in which it is wrong."""


@shared()
def wrong_requests(run: Running) -> None:
    """A request with a wrong field is refused by the field's name, and harms nobody."""
    table = list(REQUESTS)
    if run.engine.vocab_size is not None:
        table.append(("prompt_token_ids[1]", {"prompt_token_ids": [1, run.engine.vocab_size]}))
    for field, fields in table:
        given: dict[str, Any] = {
            "request_id": "wrong", "prompt_token_ids": [1, 2], "sampling_params": params(4),
        }  # fmt: skip
        with pytest.raises(RequestRejectedError) as refused:
            run.face.add(EngineCoreRequest(**(given | fields)))
        assert refused.value.field.startswith(field)
        assert str(refused.value).startswith(refused.value.field)
    assert run.serves()


@shared()
def wrong_streams(run: Running) -> None:
    """The same is true of `generate`, at the latest when its stream is read."""
    for prompt, options in (([], {}), ([1, -1], {}), ([1, 2], {"deadline": "soon"})):
        with pytest.raises(RequestRejectedError):
            list(run.face.generate(prompt, params(4), **options))
    assert run.serves()


@shared()
def wrong_calls(run: Running) -> None:
    """A call that is not listed, or not for engines, is refused and never sent."""
    for field, call in CALLS:
        with pytest.raises(RequestRejectedError) as refused:
            call(run)
        assert refused.value.field.startswith(field), str(refused.value)
    assert run.serves()


@shared(ways=OUTSIDE)
def wrong_rank(run: Running) -> None:
    """A request for an engine that is not there is refused."""
    with pytest.raises(RequestRejectedError) as refused:
        list(run.face.generate([1, 2], params(4), data_parallel_rank=run.cell.ranks))
    assert refused.value.field == "data_parallel_rank"
    assert run.serves()
