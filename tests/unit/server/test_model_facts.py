"""The sizes of vocabulary and embeddings from the model's own files."""

import json
import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest

from enginecore_server.model_facts import (
    ModelInputs,
    NoModelFilesError,
    UnknownEmbeddingsError,
    UnknownVocabularyError,
    embedding_width,
    modalities,
    model_inputs,
    vocabulary_size,
)
from enginecore_wire.contract import ModelConfig, RuntimeConfig


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def entry(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def strings(*items: str) -> bytes:
    return struct.pack("<IQ", 8, len(items)) + b"".join(map(text, items))


ARCHITECTURE = entry("general.architecture", 8, text("llama"))
FLAG = entry("tokenizer.ggml.add_bos_token", 7, b"\x01")
SCORES = entry("tokenizer.ggml.scores", 9, struct.pack("<IQ3f", 6, 3, 1.0, 2.0, 3.0))
TOKENS = entry("tokenizer.ggml.tokens", 9, strings("<s>", "a", "b", "c"))
MERGES = entry("tokenizer.ggml.merges", 9, strings("a b"))
DECLARED = entry("llama.vocab_size", 4, struct.pack("<I", 77))


def gguf(*entries: bytes, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, 0, len(entries)) + b"".join(entries)


@pytest.mark.parametrize(
    ("content", "size"),
    [
        (gguf(ARCHITECTURE, FLAG, SCORES, TOKENS), 4),
        (gguf(ARCHITECTURE, MERGES, DECLARED), 77),
        (gguf(DECLARED, TOKENS), 4),
        (gguf(TOKENS, version=2), 4),
    ],
)
def test_gguf_header_tells(tmp_path: Path, content: bytes, size: int) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(content)
    assert vocabulary_size(str(file), None) == size
    assert vocabulary_size(str(tmp_path), None) == size


@pytest.mark.parametrize(
    ("config", "size"),
    [
        ({"vocab_size": 49152}, 49152),
        ({"text_config": {"vocab_size": 32000}}, 32000),
        ({"vocab_size": None, "text_config": {"vocab_size": 5}}, 5),
    ],
)
def test_config_json_tells(tmp_path: Path, config: dict[str, Any], size: int) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert vocabulary_size(str(tmp_path), None) == size


def test_the_settings_win(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"vocab_size": 10}')
    assert vocabulary_size(str(tmp_path), 99) == 99
    assert vocabulary_size("some/hub-id", 99) == 99


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"GGUF",
        b"JUNK" + bytes(100),
        gguf(TOKENS, version=1),
        gguf(ARCHITECTURE),
        gguf(TOKENS)[:-200],
        gguf(entry("x", 99, b"")),
        gguf(text("k") + struct.pack("<IQ", 8, 1 << 60)),
    ],
    ids=["empty", "magic-only", "junk", "old", "silent", "cut", "unknown-type", "absurd-length"],
)
def test_damaged_files_are_refused_with_the_remedy(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(content)
    with pytest.raises(UnknownVocabularyError, match=r"model\.vocab_size"):
        vocabulary_size(str(file), None)


@pytest.mark.parametrize(
    "files",
    [
        {"config.json": "{}"},
        {"config.json": "{"},
        {"config.json": "[]"},
        {"config.json": '{"text_config": "x"}'},
        {"config.json": '{"vocab_size": true}'},
        {"config.json": '{"vocab_size": 9223372036854775808}'},
        {"config.json": "[" * 100_000},
    ],
)
def test_silent_directories_are_refused(tmp_path: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(UnknownVocabularyError, match=str(tmp_path)):
        vocabulary_size(str(tmp_path), None)


def test_a_name_that_is_no_path_is_refused() -> None:
    with pytest.raises(UnknownVocabularyError, match=r"no such file.*model\.vocab_size"):
        vocabulary_size("org/name", None)


@pytest.mark.parametrize(
    ("files", "words", "vocabulary_helps"),
    [
        ([], r"no model in {path}, .*among its 0 entries", False),
        (["notes.txt"], r"no model in {path}, .*among its 1 entry", True),
        (None, r"{path} does not exist", False),
    ],
    ids=["empty", "something else", "not there"],
)
def test_a_place_without_a_model_is_named_with_its_source(
    tmp_path: Path, files: list[str] | None, words: str, vocabulary_helps: bool
) -> None:
    place = tmp_path / "models"
    if files is not None:
        place.mkdir()
    for name in files or ():
        (place / name).touch()
    with pytest.raises(NoModelFilesError, match=words.format(path=place)) as caught:
        vocabulary_size(str(place), None)
    assert "spec.model.source" in str(caught.value)
    assert ("spec.model.vocabSize" in str(caught.value)) == vocabulary_helps
    assert vocabulary_size(str(place), 7) == 7


EMBEDS = RuntimeConfig(type="vllm", args=["--enable-prompt-embeds"])


@pytest.mark.parametrize(
    ("config", "width"),
    [
        ({"hidden_size": 576, "vocab_size": 9}, 576),
        ({"text_config": {"hidden_size": 64}}, 64),
    ],
)
def test_width_of_embeddings_where_the_engine_takes_them(
    tmp_path: Path, config: dict[str, Any], width: int
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert embedding_width(str(tmp_path), EMBEDS) == width
    underscores = RuntimeConfig(type="vllm", args=["--enable_prompt_embeds"])
    assert embedding_width(str(tmp_path), underscores) == width
    assert embedding_width(str(tmp_path), RuntimeConfig(type="vllm")) == 0


@pytest.mark.parametrize("content", ["{}", "{", '{"hidden_size": 0}'])
def test_unknown_width_of_embeddings_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(UnknownEmbeddingsError, match="--enable-prompt-embeds"):
        embedding_width(str(tmp_path), EMBEDS)
    with pytest.raises(UnknownEmbeddingsError, match="No such file"):
        embedding_width("org/name", EMBEDS)


@pytest.mark.parametrize(
    ("config", "kind", "taken"),
    [
        ('{"vision_config": {"depth": 2}}', "vllm", ("image", "video")),
        ('{"vision_config": {"depth": 2}, "audio_config": {"x": 1}}', "custom",
         ("image", "video", "audio")),
        ('{"vision_config": {"depth": 2}}', "torch", ()),
        ('{"vision_config": null}', "vllm", ()),
        ("[]", "vllm", ()),
        ("{", "vllm", ()),
    ],
)  # fmt: skip
def test_the_config_tells_what_items_a_model_takes(
    tmp_path: Path, config: str, kind: Any, taken: tuple[str, ...]
) -> None:
    (tmp_path / "config.json").write_text(config)
    assert modalities(str(tmp_path), RuntimeConfig(type=kind)) == taken
    assert modalities("org/name", RuntimeConfig(type=kind)) == ()


def test_everything_at_once(tmp_path: Path) -> None:
    text = '{"vocab_size": 9, "hidden_size": 4, "audio_config": {"x": 1}}'
    (tmp_path / "config.json").write_text(text)
    runtime = msgspec.structs.replace(EMBEDS, args=[*EMBEDS.args, "--max-logprobs", "30"])
    wanted = ModelInputs(9, 4, ("audio",), 30)
    assert model_inputs(ModelConfig(str(tmp_path)), runtime) == wanted
