"""What a model's files say before any engine has loaded them: what its requests are held to.

Reads config.json and GGUF headers with the standard library alone.
"""

import json
import struct
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from enginecore_wire.contract import ModelConfig, RuntimeConfig
from enginecore_wire.control import DEFAULT_MAX_LOGPROBS
from enginecore_wire.engine_options import max_logprobs
from enginecore_wire.wording import counted

_GGUF_MAGIC: Final = b"GGUF"
_FIXED: Final = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_INTEGERS: Final = {4: "<I", 5: "<i", 10: "<Q", 11: "<q"}
_STRING: Final = 8
_ARRAY: Final = 9
_MOST_TOKENS: Final = 2**31 - 1
_LONGEST: Final = 1 << 28
"""Bytes no single value of a sane header exceeds."""


EMBEDDINGS_OPTION: Final = "--enable-prompt-embeds"
"""vLLM's option without which its engine does not survive a prompt of embeddings."""


_PARTS: Final = {"vision_config": ("image", "video"), "audio_config": ("audio",)}
"""Which parts of a config.json take which modalities."""


class ModelInputs(NamedTuple):
    """What a model takes: token ids from 0 to `vocab_size` - 1; embeddings of `hidden_size` (0:
    none); items of these `modalities`; up to `max_logprobs` log-probabilities (-1: all)."""

    vocab_size: int
    hidden_size: int = 0
    modalities: tuple[str, ...] = ()
    max_logprobs: int = DEFAULT_MAX_LOGPROBS


class UnknownModelError(ValueError):
    """The model's files do not tell what requests are held to; the text says what to do."""


class UnknownVocabularyError(UnknownModelError):
    """The model's files do not tell its vocabulary size."""


class NoModelFilesError(UnknownVocabularyError):
    """Where the model should be are no files of one."""


class UnknownEmbeddingsError(UnknownModelError):
    """The model's files do not tell how wide its embeddings are."""


def model_inputs(model: ModelConfig, runtime: RuntimeConfig) -> ModelInputs:
    """Return what requests to a model are held to.

    Raises:
        UnknownModelError: neither the settings nor the model's files tell; see below.
    """
    return ModelInputs(
        vocabulary_size(model.path, model.vocab_size),
        embedding_width(model.path, runtime),
        modalities(model.path, runtime),
        max_logprobs((*runtime.command, *runtime.args)),
    )


def vocabulary_size(path: str, configured: int | None) -> int:
    """Return how many token ids the model at `path` knows.

    Args:
        path: a directory with config.json or one GGUF file, or a GGUF file.
        configured: the size from the settings, which wins.

    Raises:
        NoModelFilesError: there are no files of a model.
        UnknownVocabularyError: neither the settings nor the files tell.
    """
    if configured is not None:
        return configured
    try:
        _check_files(Path(path))
        size = _from_files(Path(path))
        if not 1 <= size <= _MOST_TOKENS:
            raise ValueError(f"a vocabulary of {size} tokens: the file is damaged")
        return size
    except NoModelFilesError:
        raise
    except (OSError, ValueError, struct.error, RecursionError) as error:
        raise UnknownVocabularyError(
            f"model.path: the vocabulary size of {path} is unknown ({error}); "
            "set model.vocab_size (spec.model.vocabSize)"
        ) from error


def embedding_width(path: str, runtime: RuntimeConfig) -> int:
    """Return how wide a prompt's embeddings are; 0 if the engine is not told to take any.

    Raises:
        UnknownEmbeddingsError: it is told to, and the model's files do not tell.
    """
    words = (*runtime.command, *runtime.args)
    if EMBEDDINGS_OPTION not in [word.replace("_", "-") for word in words]:
        return 0
    try:
        return config_size(Path(path) / "config.json", "hidden_size")
    except (OSError, ValueError, RecursionError) as error:
        raise UnknownEmbeddingsError(
            f"model.path: the width of the embeddings of {path} is unknown ({error}); give a "
            f"directory with config.json, or take {EMBEDDINGS_OPTION} out of runtime.args"
        ) from error


def modalities(path: str, runtime: RuntimeConfig) -> tuple[str, ...]:
    """Return what multimodal items the engine takes: those its model's config.json has a part for.

    The built-in engine takes none.
    """
    if runtime.type == "torch":
        return ()
    try:
        config = json.loads((Path(path) / "config.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return ()
    parts = config if isinstance(config, dict) else {}
    return tuple(kind for part, kinds in _PARTS.items() if parts.get(part) for kind in kinds)


def _check_files(path: Path) -> None:
    """Refuse a place without a model; a relative path may be the name of one elsewhere.

    Raises:
        NoModelFilesError: nothing there is known to be a model.
    """
    if path.is_absolute() and not path.exists():
        raise NoModelFilesError(
            f"model.path: {path} does not exist: check spec.model.source (a pvc's path, too); "
            "without a source, the image must hold the model that spec.model.name names"
        )
    if not path.is_dir() or (path / "config.json").is_file() or _gguf_files(path):
        return
    files = sum(1 for _ in path.iterdir())
    text = (
        f"model.path: there is no model in {path}, where spec.model.source is mounted: neither "
        f"config.json nor a .gguf file among its {counted(files, 'entry', 'entries')}; let "
        "spec.model.source name the directory of the checkpoint"
    )
    if files:
        text += (
            "; for an engine that reads other files, set model.vocab_size (spec.model.vocabSize)"
        )
    raise NoModelFilesError(text)


def _gguf_files(path: Path) -> list[Path]:
    return sorted(path.glob("*.gguf"))


def _from_files(path: Path) -> int:
    if path.is_file():
        return gguf_vocabulary(path)
    if not path.is_dir():
        raise ValueError("no such file or directory")
    config = path / "config.json"
    if config.is_file():
        return config_size(config, "vocab_size")
    return gguf_vocabulary(_gguf_files(path)[0])


def config_size(path: Path, name: str) -> int:
    """Return a size of a config.json, its own or its text model's.

    Raises:
        ValueError: it has none.
    """
    config = json.loads(path.read_bytes())
    holders = [config, config.get("text_config")] if isinstance(config, dict) else []
    for holder in holders:
        size = holder.get(name) if isinstance(holder, dict) else None
        if type(size) is int and size > 0:
            return size
    raise ValueError(f"{path.name} has no {name}")


def gguf_vocabulary(path: Path) -> int:
    """Return the vocabulary size in a GGUF header: the length of its token list, or its
    `<architecture>.vocab_size`.

    Raises:
        ValueError: it is no GGUF file of version 2 or 3, or says neither.
        struct.error: it ends within the header.
    """
    with path.open("rb") as file:
        if file.read(4) != _GGUF_MAGIC:
            raise ValueError(f"{path.name} is no GGUF file")
        version, _tensors, count = struct.unpack("<IQQ", file.read(20))
        if version not in (2, 3):
            raise ValueError(f"{path.name} is GGUF version {version}, known are 2 and 3")
        declared = None
        for _ in range(count):
            key = _read_string(file)
            (kind,) = struct.unpack("<I", file.read(4))
            if key == b"tokenizer.ggml.tokens" and kind == _ARRAY:
                _, length = struct.unpack("<IQ", file.read(12))
                return int(length)
            if key.endswith(b".vocab_size") and kind in _INTEGERS:
                layout = _INTEGERS[kind]
                (declared,) = struct.unpack(layout, file.read(struct.calcsize(layout)))
            else:
                _skip(file, kind)
    if declared is None or declared < 1:
        raise ValueError(f"{path.name} has neither tokenizer.ggml.tokens nor a vocab_size")
    return int(declared)


def _read_length(file: BinaryIO) -> int:
    (length,) = struct.unpack("<Q", file.read(8))
    if length > _LONGEST:
        raise ValueError(f"a header value of {length} bytes: the file is damaged")
    return int(length)


def _read_string(file: BinaryIO) -> bytes:
    return file.read(_read_length(file))


def _skip(file: BinaryIO, kind: int) -> None:
    if kind in _FIXED:
        file.seek(_FIXED[kind], 1)
    elif kind == _STRING:
        file.seek(_read_length(file), 1)
    elif kind == _ARRAY:
        (item,) = struct.unpack("<I", file.read(4))
        count = _read_length(file)
        if item in _FIXED:
            file.seek(_FIXED[item] * count, 1)
        else:
            for _ in range(count):
                _skip(file, item)
    else:
        raise ValueError(f"header value of unknown type {kind}: the file is damaged")
