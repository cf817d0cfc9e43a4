"""Text in and text out, for callers who do not bring their own tokenizer (extra `[text]`).

Engines know token ids only. A Tokenizer turns chats into ids, a Detokenizer turns ids into text
as they come: it never shows half a character, nor what may become a stop string.
"""

import codecs
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from enginecore_client._faces.streams import AsyncStream, SyncStream
from enginecore_client._vocabulary import Vocabulary, read_directory, read_gguf, text_extra
from enginecore_wire.outputs import EngineCoreOutput
from enginecore_wire.requests import OutputKind, SamplingParams


class Tokenizer:
    """A byte-level BPE tokenizer with its chat template.

    Attributes:
        eos_token_ids: ids that end a generation; the first is the model's own.
        vocab_size: how many ids there are.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.eos_token_ids = vocabulary.eos_token_ids
        self.vocab_size: int = vocabulary.encoder.get_vocab_size()
        self._encoder = vocabulary.encoder
        self._bos_token_ids = vocabulary.bos_token_ids
        self._pieces = vocabulary.pieces
        self._special = vocabulary.special
        self._variables = vocabulary.template_variables
        self._template = _compile(vocabulary.chat_template) if vocabulary.chat_template else None

    @classmethod
    def load(cls, path: str | Path) -> "Tokenizer":
        """Load from a GGUF file, or from a directory with tokenizer.json (or one GGUF file).

        Raises:
            ValueError: there is no tokenizer, or one of a kind that is not byte-level BPE.
            ImportError: the extra `[text]` is not installed.
        """
        place = Path(path)
        if place.is_dir() and not (place / "tokenizer.json").exists():
            files = sorted(place.glob("*.gguf"))
            if len(files) != 1:
                raise ValueError(f"{place}: holds neither tokenizer.json nor exactly one GGUF file")
            place = files[0]
        return cls(read_directory(place) if place.is_dir() else read_gguf(place))

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text; names of special tokens in it count as those tokens."""
        ids: list[int] = self._encoder.encode(text, add_special_tokens=False).ids
        return [*self._bos_token_ids, *ids]

    def encode_chat(
        self, messages: Sequence[dict[str, Any]], *, continuation: bool = False, **variables: Any
    ) -> list[int]:
        """Return the ids of a chat, ready for the assistant's answer.

        Args:
            messages: dicts with `role` and `content`.
            continuation: leave out the prompt for an answer.
            variables: more names that the model's template knows.

        Raises:
            ValueError: the model has no chat template, or its template refuses the messages.
        """
        if self._template is None:
            raise ValueError("this model has no chat template; use encode")
        from jinja2 import TemplateError  # noqa: PLC0415 - part of an extra

        try:
            text = self._template.render(
                messages=list(messages),
                add_generation_prompt=not continuation,
                **(self._variables | variables),
            )
        except TemplateError as error:
            raise ValueError(f"the chat template refuses these messages: {error}") from error
        ids: list[int] = self._encoder.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, token_ids: Iterable[int]) -> str:
        """Return the text of ids; special tokens have none."""
        return self.bytes_of(token_ids).decode(errors="replace")

    def bytes_of(self, token_ids: Iterable[int], *, special: bool = False) -> bytes:
        """Return the UTF-8 bytes that ids stand for, perhaps ending inside a character.

        Args:
            token_ids: ids outside the vocabulary stand for nothing.
            special: whether special tokens stand for their names, or for nothing.
        """
        pieces, size = self._pieces, len(self._pieces)
        if special:
            names = self._special
            return b"".join(
                names.get(token) or pieces[token] for token in token_ids if 0 <= token < size
            )
        return b"".join(pieces[token] for token in token_ids if 0 <= token < size)

    def complete(self, params: SamplingParams) -> SamplingParams:
        """Return `params` with the ids an engine needs: where this model ends, words to avoid."""
        own, *others = self.eos_token_ids or (None,)
        if params.eos_token_id is not None:
            own = params.eos_token_id
        stops = [*(params.stop_token_ids or ()), *([] if params.ignore_eos else others)]
        stops = list(dict.fromkeys(stops))
        eos = [] if params.ignore_eos or own is None else [own]
        return msgspec.structs.replace(
            params,
            eos_token_id=own,
            stop_token_ids=stops or None,
            all_stop_token_ids=sorted({*eos, *stops, *params.all_stop_token_ids}),
            bad_words_token_ids=params.bad_words_token_ids or self._words(params.bad_words),
        )

    def reader(self, params: SamplingParams) -> "Detokenizer":
        """Return what turns the tokens of one sequence into text.

        Raises:
            ValueError: a stop string is empty.
        """
        return Detokenizer(
            self,
            params.stop,
            include_stop=params.include_stop_str_in_output,
            min_tokens=params.min_tokens,
            special=not params.skip_special_tokens,
        )

    def _words(self, words: Iterable[str] | None) -> list[list[int]] | None:
        """Return the ids of words at the start of a text, and after a space where they differ."""
        found: list[list[int]] = []
        for word in words or ():
            bare: list[int] = self._encoder.encode(word, add_special_tokens=False).ids
            spaced: list[int] = self._encoder.encode(
                " " + word.lstrip(), add_special_tokens=False
            ).ids
            found.append(bare)
            if len(spaced) == len(bare) and spaced[0] != bare[0]:
                found.append(spaced)
        return found or None


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
        tokenizer: Tokenizer,
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


async def read_text_async(stream: AsyncStream, detokenizer: Detokenizer) -> AsyncIterator[str]:
    """Yield a stream's text as it comes; a stop string ends it and aborts the request.

    Raises:
        ValueError: the stream has more than one sequence.
    """
    fresh = _Fresh(stream)
    async with stream:
        async for output in stream:
            text = detokenizer.push(fresh.tokens(output))
            if text:
                yield text
            if detokenizer.stopped is not None:
                return
        tail = detokenizer.finish()
        if tail:
            yield tail


def read_text(stream: SyncStream, detokenizer: Detokenizer) -> Iterator[str]:
    """Do as read_text_async for the sync client."""
    fresh = _Fresh(stream)
    with stream:
        for output in stream:
            text = detokenizer.push(fresh.tokens(output))
            if text:
                yield text
            if detokenizer.stopped is not None:
                return
        tail = detokenizer.finish()
        if tail:
            yield tail


class _Fresh:
    """Tells the tokens of an output that were not in those before it."""

    def __init__(self, stream: SyncStream | AsyncStream) -> None:
        if stream.n != 1:
            raise ValueError(f"n: got {stream.n}, allowed: 1; give the client a tokenizer instead")
        self._cumulative = stream.output_kind is OutputKind.CUMULATIVE
        self._seen = 0

    def tokens(self, output: EngineCoreOutput) -> list[int]:
        """Return the tokens of the stream's next output."""
        if not self._cumulative:
            return output.new_token_ids
        seen, self._seen = self._seen, len(output.new_token_ids)
        return output.new_token_ids[seen:]


def _overlap(text: str, stop: str) -> int:
    """Return how many characters at the end of `text` may be the start of `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)


def _compile(source: str) -> Any:
    """Compile a chat template, which comes with a model and is not trusted."""
    with text_extra():
        from jinja2.exceptions import TemplateError  # noqa: PLC0415 - part of an extra
        from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415

    def refuse(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = refuse
    return environment.from_string(source)


__all__: Final = ["Detokenizer", "Tokenizer", "read_text", "read_text_async"]
