"""Text in and text out, for callers who do not bring their own tokenizer (extra `[text]`).

Engines know token ids only. A Tokenizer turns chats into ids, a Detokenizer turns ids into text
as they come: it never shows half a character, nor what may become a stop string.
"""

import codecs
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from enginecore_client._streams import AsyncStream, SyncStream
from enginecore_client._vocabulary import Vocabulary, read_directory, read_gguf, text_extra
from enginecore_wire.requests import SamplingParams


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

    def bytes_of(self, token_ids: Iterable[int]) -> bytes:
        """Return the UTF-8 bytes that ids stand for, perhaps ending inside a character."""
        pieces, size = self._pieces, len(self._pieces)
        return b"".join(pieces[token] for token in token_ids if 0 <= token < size)

    def complete(self, params: SamplingParams) -> SamplingParams:
        """Return `params` with the ids at which this model ends, as an engine needs them."""
        own, *others = self.eos_token_ids or (None,)
        stops = [*(params.stop_token_ids or ()), *([] if params.ignore_eos else others)]
        ends = [*([] if params.ignore_eos or own is None else [own]), *stops]
        return msgspec.structs.replace(
            params,
            eos_token_id=own,
            stop_token_ids=stops or None,
            all_stop_token_ids=sorted(set(ends)) or None,
        )


class Detokenizer:
    """Turns one request's tokens into text as they come.

    Args:
        tokenizer: the model's.
        stop: strings at which the text ends.
        include_stop: whether the stop string belongs to the text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: str | Sequence[str] | None = None,
        *,
        include_stop: bool = False,
    ) -> None:
        stops = [stop] if isinstance(stop, str) else list(stop or ())
        if "" in stops:
            raise ValueError("stop: an empty string would end every text at once; leave it out")
        self.stopped: str | None = None
        self._tokenizer = tokenizer
        self._stops = stops
        self._include_stop = include_stop
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""

    def push(self, token_ids: Iterable[int]) -> str:
        """Return the text that is certain after these tokens; "" once stopped."""
        return self._take(self._decoder.decode(self._tokenizer.bytes_of(token_ids)))

    def finish(self) -> str:
        """Return what was held back; no more tokens will come."""
        text = self._take(self._decoder.decode(b"", final=True))
        held, self._held = self._held, ""
        return text + held

    def _take(self, text: str) -> str:
        if self.stopped is not None:
            return ""
        self._held += text
        found = [(self._held.find(stop), stop) for stop in self._stops if stop in self._held]
        if found:
            at, self.stopped = min(found, key=lambda hit: (hit[0], -len(hit[1])))
            shown = self._held[: at + (len(self.stopped) if self._include_stop else 0)]
            self._held = ""
            return shown
        keep = max((_overlap(self._held, stop) for stop in self._stops), default=0)
        shown, self._held = (
            self._held[: len(self._held) - keep],
            self._held[len(self._held) - keep :],
        )
        return shown


async def read_text_async(stream: AsyncStream, detokenizer: Detokenizer) -> AsyncIterator[str]:
    """Yield a stream's text as it comes; a stop string ends it and aborts the request."""
    async with stream:
        async for output in stream:
            text = detokenizer.push(output.new_token_ids)
            if text:
                yield text
            if detokenizer.stopped is not None:
                return
        tail = detokenizer.finish()
        if tail:
            yield tail


def read_text(stream: SyncStream, detokenizer: Detokenizer) -> Iterator[str]:
    """Do as read_text_async for the sync client."""
    with stream:
        for output in stream:
            text = detokenizer.push(output.new_token_ids)
            if text:
                yield text
            if detokenizer.stopped is not None:
                return
        tail = detokenizer.finish()
        if tail:
            yield tail


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
