"""When a request ends."""

from typing import NamedTuple

from enginecore_torch.sequence import Sequence
from enginecore_wire.outputs import FinishReason


class End(NamedTuple):
    """Why a request ended; `stop_reason` is the stop token unless that is the model's own."""

    reason: FinishReason
    stop_reason: int | None = None


def end_of(sequence: Sequence, max_model_len: int) -> End | None:
    """Return why `sequence` ends with its last token, or None if it goes on.

    The token that ends a request is among its outputs. `min_tokens` keeps stop tokens from
    ending it, `max_tokens` and `max_model_len` end it in any case.
    """
    params, token = sequence.params, sequence.tokens[-1]
    if sequence.num_outputs >= params.min_tokens:
        if not params.ignore_eos and token == params.eos_token_id:
            return End(FinishReason.STOP)
        if params.stop_token_ids and token in params.stop_token_ids:
            return End(FinishReason.STOP, token)
    assert params.max_tokens is not None
    if sequence.num_outputs >= params.max_tokens or len(sequence.tokens) >= max_model_len:
        return End(FinishReason.LENGTH)
    return None
