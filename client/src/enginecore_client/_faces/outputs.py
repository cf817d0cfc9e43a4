"""The outputs of one sequence put together: engines send deltas, callers may want the whole."""

from collections.abc import Sequence
from typing import Final

import msgspec

from enginecore_wire.new_tokens import complete
from enginecore_wire.outputs import EngineCoreOutput, Logprobs, SamplingMask
from enginecore_wire.requests import OutputKind
from enginecore_wire.tensors import Tensor


class GeneratedOutput(EngineCoreOutput):
    """An output of `generate` with what the client adds to it.

    `index` is the sequence of an n > 1 request, from 0. `text` is that of `new_token_ids`, as far
    as it is certain: half a character and what may become a stop string are held back.
    """

    index: int = 0
    text: str = ""


def generated(output: EngineCoreOutput, index: int, text: str = "") -> GeneratedOutput:
    """Return `output` with its sequence's index and its text."""
    return GeneratedOutput(*(*msgspec.structs.astuple(complete(output)), index, text))


class Whole:
    """Puts the outputs of one sequence together as its caller wants them.

    Args:
        kind: CUMULATIVE for everything so far each time, FINAL_ONLY for everything at the end.
    """

    def __init__(self, kind: OutputKind) -> None:
        self._kind = kind
        self._parts: list[GeneratedOutput] = []

    def add(self, output: GeneratedOutput) -> GeneratedOutput | None:
        """Return what the caller gets after this output; None for nothing yet.

        Raises:
            ValueError: arrays of two outputs do not fit together.
        """
        self._parts.append(output)
        if self._kind is OutputKind.FINAL_ONLY and output.finish_reason is None:
            return None
        whole = joined(self._parts)
        self._parts = [whole]
        return whole


def joined(outputs: Sequence[GeneratedOutput]) -> GeneratedOutput:
    """Return what the outputs of one sequence, in order, say together.

    Tokens, text, log-probabilities, sampling masks and events are joined; of what an engine sends
    once, the last value that is set counts.

    Raises:
        ValueError: arrays of two outputs do not fit together.
    """
    whole = msgspec.structs.replace(outputs[-1])
    if len(outputs) == 1:
        return whole
    for name in _SENT_ONCE:
        if getattr(whole, name) is None:
            values = (getattr(output, name) for output in reversed(outputs))
            setattr(whole, name, next((value for value in values if value is not None), None))
    whole.new_token_ids = [token for output in outputs for token in output.new_token_ids]
    whole.text = "".join(output.text for output in outputs)
    whole.num_nans_in_logits = sum(output.num_nans_in_logits for output in outputs)
    whole.events = [event for output in outputs for event in output.events or ()] or None
    logprobs = [output.new_logprobs for output in outputs if output.new_logprobs is not None]
    whole.new_logprobs = _join_logprobs(logprobs) if logprobs else None
    masks = [output.new_sampling_mask for output in outputs if output.new_sampling_mask is not None]
    whole.new_sampling_mask = _join_masks(masks) if masks else None
    return whole


_JOINED: Final = frozenset(
    ("request_id", "index", "new_token_ids", "text", "new_logprobs", "new_sampling_mask", "events",
     "num_nans_in_logits")
)  # fmt: skip
_SENT_ONCE: Final = tuple(name for name in GeneratedOutput.__struct_fields__ if name not in _JOINED)


def _join_logprobs(parts: Sequence[Logprobs]) -> Logprobs:
    """Join along the positions; bounds within the engine's batch mean nothing any more."""
    return Logprobs(
        _stack([part.token_ids for part in parts]),
        _stack([part.values for part in parts]),
        _stack([part.ranks for part in parts]),
    )


def _join_masks(parts: Sequence[SamplingMask]) -> SamplingMask:
    bounds = [0]
    for part in parts:
        own = [0, part.token_ids.shape[0]] if part.offsets is None else part.offsets.tolist()
        bounds += [bounds[-1] + bound for bound in own[1:]]
    data = b"".join(bound.to_bytes(8, "little") for bound in bounds)
    offsets = Tensor("<i8", (len(bounds),), data)
    return SamplingMask(_stack([part.token_ids for part in parts]), offsets)


def _stack(arrays: Sequence[Tensor]) -> Tensor:
    """Return arrays joined along their first axis.

    Raises:
        ValueError: their dtypes or other axes differ.
    """
    first = arrays[0]
    for other in arrays[1:]:
        if other.dtype != first.dtype or other.shape[1:] != first.shape[1:]:
            raise ValueError(f"{first!r} and {other!r} of one sequence do not fit together")
    length = sum(array.shape[0] for array in arrays)
    data = b"".join(array.data for array in arrays)
    return Tensor(first.dtype, (length, *first.shape[1:]), data)
