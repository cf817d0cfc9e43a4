"""Reads byte-level BPE vocabularies from GGUF files and from tokenizer.json."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

_NORMAL, _USER_DEFINED = 1, 4
"""Token types of GGUF whose text is shown; the others (control, unknown, unused) have none."""

_SPLITS: Final[dict[str, str | None]] = {"gpt-2": None, "default": None, "smollm": "digits"}
"""`tokenizer.ggml.pre`: what is split off before GPT-2's own pattern splits the text."""

_KEY: Final = "tokenizer.ggml."


class Vocabulary(msgspec.Struct, frozen=True):
    """What a model's files say about its text.

    `encoder` is a tokenizers.Tokenizer; `pieces` holds the bytes of each token id, empty for
    special tokens, whose names are in `special`.
    """

    encoder: Any
    pieces: list[bytes]
    special: dict[int, bytes]
    eos_token_ids: tuple[int, ...]
    bos_token_ids: tuple[int, ...] = ()
    chat_template: str | None = None
    template_variables: dict[str, Any] = {}


@contextmanager
def text_extra() -> Iterator[None]:
    """Say what to install when an import of the extra `[text]` fails.

    Raises:
        ImportError: a package of the extra is not there.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        raise ImportError(
            f"enginecore_client.text needs the package {package}: "
            "pip install 'enginecore-client[text]'",
            name=error.name,
        ) from error


def read_gguf(path: Path) -> Vocabulary:
    """Read the vocabulary in a GGUF file's metadata.

    Raises:
        ValueError: the file has none, or one that is not byte-level BPE of a known kind.
        ImportError: the extra `[text]` is not installed.
    """
    with text_extra():
        from gguf import GGUFReader  # noqa: PLC0415 - part of an extra

    try:
        fields = GGUFReader(path).fields
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: not a GGUF file ({error})") from error
    facts = {name: field.contents() for name, field in fields.items() if "tokenizer" in name}
    model, split = facts.get(_KEY + "model"), facts.get(_KEY + "pre", "default")
    if model != "gpt2" or split not in _SPLITS:
        raise ValueError(
            f"{path}: tokenizer model {model!r} with pre-tokenizer {split!r} is not supported; "
            f"supported are gpt2 with {sorted(_SPLITS)}: use a directory with tokenizer.json"
        )
    tokens, types = facts[_KEY + "tokens"], facts[_KEY + "token_type"]
    shown = [kind in (_NORMAL, _USER_DEFINED) for kind in types]
    named = [token for token, kind in zip(tokens, types, strict=True) if kind != _NORMAL]
    encoder = _byte_level_bpe(tokens, facts[_KEY + "merges"], named, _SPLITS[split])
    ends = [facts[_KEY + name] for name in ("eos_token_id", "eot_token_id") if _KEY + name in facts]
    bos = facts.get(_KEY + "bos_token_id")
    variables = {"bos_token": "" if bos is None else tokens[bos]}
    variables["eos_token"] = tokens[ends[0]] if ends else ""
    return Vocabulary(
        encoder=encoder,
        pieces=_pieces(tokens, shown),
        special={i: token.encode() for i, token in enumerate(tokens) if not shown[i]},
        eos_token_ids=tuple(dict.fromkeys(ends)),
        bos_token_ids=(bos,) if facts.get(_KEY + "add_bos_token") and bos is not None else (),
        chat_template=facts.get("tokenizer.chat_template"),
        template_variables=variables,
    )


def read_directory(path: Path) -> Vocabulary:
    """Read tokenizer.json and its companions in a directory.

    Raises:
        ValueError: the tokenizer is not byte-level.
        ImportError: the extra `[text]` is not installed.
    """
    with text_extra():
        from tokenizers import Tokenizer  # noqa: PLC0415 - part of an extra

    encoder = Tokenizer.from_file(str(path / "tokenizer.json"))
    described = msgspec.json.decode((path / "tokenizer.json").read_bytes())
    if "ByteLevel" not in str(described.get("decoder")):
        raise ValueError(f"{path}: the tokenizer is not byte-level BPE, which is all that is read")
    settings = _json(path / "tokenizer_config.json")
    special = {item["id"] for item in described.get("added_tokens", ()) if item.get("special")}
    added = {item["id"] for item in described.get("added_tokens", ())}
    vocabulary = encoder.get_vocab(with_added_tokens=True)
    tokens = [""] * (max(vocabulary.values()) + 1)
    for token, number in vocabulary.items():
        tokens[number] = token
    pieces = _pieces(tokens, [number not in special for number in range(len(tokens))], added)
    template = settings.get("chat_template")
    if (path / "chat_template.jinja").exists():
        template = (path / "chat_template.jinja").read_text()
    names = {key: _token_text(settings.get(key)) for key in ("bos_token", "eos_token")}
    own = encoder.token_to_id(names["eos_token"]) if names["eos_token"] else None
    more = _json(path / "generation_config.json").get("eos_token_id")
    ends = [own, *(more if isinstance(more, list) else [more])]
    bos = encoder.token_to_id(names["bos_token"]) if settings.get("add_bos_token") else None
    return Vocabulary(
        encoder=encoder,
        pieces=pieces,
        special={number: tokens[number].encode() for number in special},
        eos_token_ids=tuple(dict.fromkeys(end for end in ends if end is not None)),
        bos_token_ids=() if bos is None else (bos,),
        chat_template=template if isinstance(template, str) else None,
        template_variables=names,
    )


def _byte_level_bpe(
    tokens: list[str], merges: list[str], named: list[str], split: str | None
) -> Any:
    with text_extra():
        from tokenizers import (  # noqa: PLC0415 - part of an extra
            AddedToken,
            Tokenizer,
            decoders,
            models,
            pre_tokenizers,
        )

    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    encoder = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, pairs))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    encoder.pre_tokenizer = (
        pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
        if split == "digits"
        else byte_level
    )
    encoder.decoder = decoders.ByteLevel()
    encoder.add_special_tokens([AddedToken(token, normalized=False) for token in named])
    return encoder


def _pieces(tokens: list[str], shown: list[bool], plain: set[int] = frozenset()) -> list[bytes]:  # type: ignore[assignment]
    """Return each token's bytes; ids in `plain` are written as text, not in GPT-2's letters."""
    table = _letters()
    pieces = []
    for number, token in enumerate(tokens):
        if not shown[number]:
            pieces.append(b"")
        elif number in plain or any(letter not in table for letter in token):
            pieces.append(token.encode())
        else:
            pieces.append(bytes(table[letter] for letter in token))
    return pieces


def _letters() -> dict[str, int]:
    """Return the byte behind each letter of GPT-2's alphabet.

    Printable bytes of Latin-1 stand for themselves; the others take the letters from U+0100 on,
    in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    table = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in printable)
    return table | {chr(0x100 + i): byte for i, byte in enumerate(others)}


def _json(path: Path) -> dict[str, Any]:
    return msgspec.json.decode(path.read_bytes(), type=dict[str, Any]) if path.exists() else {}


def _token_text(value: Any) -> str:
    return str(value.get("content", "")) if isinstance(value, dict) else value or ""
