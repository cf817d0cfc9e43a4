"""Which requests this engine can compute."""

from collections.abc import Callable

from enginecore_wire.problems import RequestLimits
from enginecore_wire.requests import EngineCoreRequest, SamplingParams
from enginecore_wire.validation import check_request


class DuplicateRequestError(ValueError):
    """An unfinished request has this id; it goes on, and the new one is not taken."""


_UNSUPPORTED: tuple[tuple[str, Callable[[SamplingParams], bool]], ...] = (
    ("structured_outputs", lambda params: params.structured_outputs is not None),
    ("logprob_token_ids", lambda params: bool(params.logprob_token_ids)),
    ("prompt_logprob_token_ids", lambda params: params.prompt_logprob_token_ids is not None),
    ("thinking_token_budget", lambda params: params.thinking_token_budget not in (None, -1)),
    ("watermarking", lambda params: bool(params.watermarking)),
    (
        "repetition_detection",
        lambda params: bool(
            params.repetition_detection and params.repetition_detection.max_pattern_size
        ),
    ),
)


def admit(request: EngineCoreRequest, limits: RequestLimits) -> SamplingParams:
    """Return how to sample for `request`.

    Raises:
        ValueError: it cannot be computed; the text names the field, its value and the limit.
    """
    problem = check_request(request, limits)
    if problem is not None:
        raise ValueError(problem.message)
    params = request.sampling_params
    assert params is not None
    for field, asks in _UNSUPPORTED:
        if asks(params):
            raise ValueError(
                f"sampling_params.{field}: the torch engine does not support it; leave it out"
            )
    return params
