"""Messages that say which tokens are new and nothing else: most of what an engine sends.

vLLM writes every field of an output, most of them nil. Their bytes are the same in every such
output, so to look for them says what need not be read; a third of the time of a client with many
streams went into making, and letting go of, fields that are None.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from enginecore_wire.codec import Buffer, MsgpackDecoder
from enginecore_wire.outputs import EngineCoreOutput, EngineCoreOutputs

FEWEST: Final = 8
"""A message with fewer outputs is read as it is: to look for more takes longer."""

_HEAD: Final = b"\xdc\x00\x12"
"""The beginning of an output: an array of 18."""
_REST: Final = b"\xc0" * 11 + b"\x00" + b"\xc0" * 4
"""What follows the tokens: no log-probabilities up to no routed experts, no NaNs, nothing more."""
_BETWEEN: Final = _REST + _HEAD
_INDEX_ENDS: Final = {0xCC: 3, 0xCD: 4}
"""Where the number of the engine ends, by its first byte; below 128 it is that byte."""


class NewTokens(msgspec.Struct, array_like=True, gc=False, eq=False):
    """An EngineCoreOutput that has nothing but tokens, in less than half of the memory.

    It reads like one, `isinstance` takes it for one, and it equals one with the same tokens. What
    it does not have cannot be set, and msgspec's functions on structs see six fields.
    """

    request_id: str
    new_token_ids: list[int]
    # These are read: what they hold may end like outputs that have none, and a stream without its
    # finish_reason would never end.
    new_logprobs: None = None
    new_prompt_logprobs: None = None
    pooling_output: None = None
    finish_reason: None = None

    stop_reason = None
    events = None
    kv_transfer_params = None
    ec_transfer_params = None
    trace_headers = None
    prefill_stats = None
    routed_experts = None
    num_nans_in_logits = 0
    mm_cache_miss_hashes = None
    new_sampling_mask = None
    spec_decode_metrics = None
    prompt_token_id_logprobs = None
    index = 0
    text = ""

    if not TYPE_CHECKING:
        __class__ = property(lambda _: EngineCoreOutput)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, EngineCoreOutput):
            return complete(self) == complete(other)
        return NotImplemented

    def __ne__(self, other: object) -> bool:
        # Struct has one of its own, which knows nothing of this __eq__.
        return not self == other

    __hash__ = None  # type: ignore[assignment]


class _Outputs(EngineCoreOutputs):
    outputs: list[NewTokens] = []  # type: ignore[assignment]  # noqa: RUF012 - a field


def complete(output: Any) -> EngineCoreOutput:
    """Return an output as one that has every field."""
    if type(output) is NewTokens:
        return EngineCoreOutput(output.request_id, output.new_token_ids)
    whole: EngineCoreOutput = output
    return whole


class OutputsDecoder(MsgpackDecoder[EngineCoreOutputs]):
    """Decodes EngineCoreOutputs; the outputs are NewTokens where all of them can be."""

    def __init__(self) -> None:
        super().__init__(EngineCoreOutputs)
        self._tokens = MsgpackDecoder(_Outputs)

    def decode(self, body: Buffer, aux: Sequence[Buffer] = ()) -> EngineCoreOutputs:
        """Do as MsgpackDecoder."""
        if not aux and len(body) > FEWEST * len(_BETWEEN) and only_tokens(whole := bytes(body)):
            try:
                read = self._tokens.decode(whole)
            except msgspec.ValidationError:
                return super().decode(whole)
            return EngineCoreOutputs(*msgspec.structs.astuple(read))
        return super().decode(body, aux)


def only_tokens(body: bytes) -> bool:
    """Say whether a message has at least FEWEST outputs, and all of them end as those with tokens
    only do; some with log-probabilities or pooled data end so, too.

    What is looked for is not in any text, as it is no UTF-8, nor in token ids. What else an output
    may have would have to end with many bytes 0xC0: six in a time, seven in a connector's data
    (a list of seven nils), eleven in an array.

    Args:
        body: EngineCoreOutputs, at least 6 bytes.
    """
    at = 2 if body[1] < 0x80 else _INDEX_ENDS.get(body[1], 0)
    if body[0] >> 4 != 0b1001 or not at:
        return False
    kind = body[at]
    if kind >> 4 == 0b1001:
        count = kind & 0b1111
    elif kind == 0xDC:
        count = int.from_bytes(body[at + 1 : at + 3])
    else:
        return False
    if count < FEWEST or body.count(_BETWEEN) != count - 1:
        return False
    return body.find(_REST, body.rfind(_BETWEEN) + len(_BETWEEN)) > 0
