"""Token ids into text as they come."""

import codecs
from collections.abc import Iterable, Sequence
from typing import Protocol


class TokenBytes(Protocol):
    """Knows what stands behind token ids; enginecore_client.text.Tokenizer does."""

    def bytes_of(self, token_ids: Iterable[int], *, special: bool = False) -> bytes:
        """Return the bytes of tokens; those of special ones only with `special`."""


class Detokenizer:
    """Turns one request's tokens into text as they come.

    Args:
        tokenizer: the model's.
        stop: strings at which the text ends.
        include_stop: whether the stop string belongs to the text.
        min_tokens: a stop string that is complete within so many tokens does not count.
        special: whether special tokens show their names.

    Attributes:
        stopped: the stop string that was reached, or None.
    """

    def __init__(
        self,
        tokenizer: TokenBytes,
        stop: str | Sequence[str] | None = None,
        *,
        include_stop: bool = False,
        min_tokens: int = 0,
        special: bool = False,
    ) -> None:
        stops = [stop] if isinstance(stop, str) else list(stop or ())
        if "" in stops:
            raise ValueError("stop: an empty string would end every text at once; leave it out")
        self.stopped: str | None = None
        self._tokenizer = tokenizer
        self._stops = stops
        self._include_stop = include_stop
        self._min_tokens = min_tokens
        self._special = special
        self._count = 0
        self._exempt = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""

    def push(self, token_ids: Iterable[int]) -> str:
        """Return the text that is certain after these tokens; "" once stopped."""
        if self._count >= self._min_tokens:
            return self._take(self._decode(token_ids))
        shown = ""
        for token in token_ids:
            self._count += 1
            shown += self._take(self._decode([token]), exempt=self._count <= self._min_tokens)
        return shown

    def finish(self) -> str:
        """Return what was held back; no more tokens will come."""
        text = self._take(self._decoder.decode(b"", final=True))
        held, self._held = self._held, ""
        return text + held

    def _decode(self, token_ids: Iterable[int]) -> str:
        return self._decoder.decode(self._tokenizer.bytes_of(token_ids, special=self._special))

    def _take(self, text: str, *, exempt: bool = False) -> str:
        """Return what is certain once `text` came; `exempt` text completes no stop string."""
        if self.stopped is not None:
            return ""
        held = self._held + text
        if exempt:
            self._exempt = len(held)
        found = [hit for stop in self._stops if (hit := (self._find(stop, held), stop))[0] >= 0]
        if found:
            at, self.stopped = min(found, key=lambda hit: (hit[0], -len(hit[1])))
            self._held = ""
            return held[: at + (len(self.stopped) if self._include_stop else 0)]
        keep = max((_overlap(held, stop) for stop in self._stops), default=0)
        shown = len(held) - keep
        self._exempt = max(0, self._exempt - shown)
        self._held = held[shown:]
        return held[:shown]

    def _find(self, stop: str, held: str) -> int:
        """Return where `stop` is in `held` and ends outside the exempt part; -1 for nowhere."""
        return held.find(stop, max(0, self._exempt - len(stop) + 1))


def _overlap(text: str, stop: str) -> int:
    """Return how many characters at the end of `text` may be the start of `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
