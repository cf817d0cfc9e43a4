"""Text in and text out, for callers who do not bring their own tokenizer (extra `[text]`).

Engines know token ids only. A Tokenizer turns chats into ids, a Detokenizer turns ids into text
as they come: it never shows half a character, nor what may become a stop string.
"""

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from enginecore_client._detokenizer import Detokenizer
from enginecore_client._faces.streams import AsyncStream, SyncStream
from enginecore_client._vocabulary import Vocabulary, read_directory, read_gguf, text_extra
from enginecore_wire.outputs import EngineCoreOutput
from enginecore_wire.requests import OutputKind, SamplingParams
from enginecore_wire.validation import shown


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
        """Return the ids of a text; names of special tokens in it count as those tokens.

        Raises:
            ValueError: a character of the text is half of one.
        """
        return [*self._bos_token_ids, *self._ids(text)]

    def encode_chat(
        self, messages: Sequence[dict[str, Any]], *, continuation: bool = False, **variables: Any
    ) -> list[int]:
        """Return the ids of a chat, ready for the assistant's answer.

        Args:
            messages: dicts with `role` and `content`.
            continuation: leave out the prompt for an answer.
            variables: more names that the model's template knows.

        Raises:
            ValueError: the model has no chat template, its template refuses the messages, or a
                character of them is half of one.
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
        return self._ids(text)

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
        """Return `params` with the ids an engine needs: where this model ends, words to avoid.

        Raises:
            ValueError: a word to avoid is empty, or no text.
        """
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

    def reader(self, params: SamplingParams) -> Detokenizer:
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

    def _ids(self, text: str) -> list[int]:
        try:
            ids: list[int] = self._encoder.encode(text, add_special_tokens=False).ids
        except TypeError as error:
            if isinstance(text, str):
                raise ValueError(f"{shown(text)} is no text: a character is half of one") from error
            raise
        return ids

    def _words(self, words: Iterable[str] | None) -> list[list[int]] | None:
        """Return the ids of words at the start of a text, and after a space where they differ."""
        found: list[list[int]] = []
        for word in words or ():
            try:
                bare, spaced = self._ids(word), self._ids(" " + word.lstrip())
            except ValueError as error:
                raise ValueError(f"bad_words: {error}") from error
            if not bare:
                raise ValueError(f"bad_words: got {word!r}, allowed: non-empty strings")
            found.append(bare)
            if len(spaced) == len(bare) and spaced[0] != bare[0]:
                found.append(spaced)
        return found or None


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
