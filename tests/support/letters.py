"""A tokenizer without a model: token n is the byte n."""

from collections.abc import Iterable

import msgspec

from enginecore_client import SamplingParams
from enginecore_client.text import Detokenizer


class Letters:
    """What a client asks of a tokenizer; the stub engine repeats a prompt, so a text comes back.

    Attributes:
        broken: whether turning tokens into text fails.
    """

    def __init__(self) -> None:
        self.broken = False

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def bytes_of(self, token_ids: Iterable[int], *, special: bool = False) -> bytes:
        if self.broken:
            raise KeyError("no such token")
        return bytes(token_ids)

    def complete(self, params: SamplingParams) -> SamplingParams:
        return msgspec.structs.replace(params, eos_token_id=0)

    def reader(self, params: SamplingParams) -> Detokenizer:
        return Detokenizer(
            self,  # type: ignore[arg-type]
            params.stop,
            include_stop=params.include_stop_str_in_output,
            min_tokens=params.min_tokens,
        )
