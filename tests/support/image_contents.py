"""What is in an OCI archive of an image: its settings, and the files of each layer."""

import functools
import json
import tarfile
from pathlib import Path
from typing import Any


class ImageContents:
    """The one image in an archive."""

    def __init__(self, archive: Path) -> None:
        self._archive = archive

    @functools.cached_property
    def config(self) -> dict[str, Any]:
        """How its containers run: User, Entrypoint, Env."""
        with tarfile.open(self._archive) as tar:
            config: dict[str, Any] = _json(tar, _blob(_manifest(tar)["config"]))["config"]
        return config

    @functools.cached_property
    def layers(self) -> tuple[dict[str, int], ...]:
        """Path → bytes of the files of each layer, from the base upwards."""
        with tarfile.open(self._archive) as tar:
            return tuple(_files(tar, _blob(layer)) for layer in _manifest(tar)["layers"])

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(sum(layer.values()) for layer in self.layers)

    @property
    def own_size(self) -> int:
        """Bytes of the files above the base."""
        return self.size - sum(self.layers[0].values())

    def find(self, part: str) -> list[str]:
        """Return the paths that have this text in them."""
        return sorted({path for layer in self.layers for path in layer if part in f"/{path}"})


def _manifest(tar: tarfile.TarFile) -> dict[str, Any]:
    (entry,) = _json(tar, "index.json")["manifests"]
    return _json(tar, _blob(entry))


def _blob(entry: dict[str, Any]) -> str:
    algorithm, _, digest = entry["digest"].partition(":")
    return f"blobs/{algorithm}/{digest}"


def _json(tar: tarfile.TarFile, name: str) -> dict[str, Any]:
    stream = tar.extractfile(name)
    assert stream is not None
    tree: dict[str, Any] = json.load(stream)
    return tree


def _files(tar: tarfile.TarFile, name: str) -> dict[str, int]:
    stream = tar.extractfile(name)
    assert stream is not None
    with tarfile.open(fileobj=stream, mode="r|*") as layer:
        return {member.name: member.size for member in layer if member.isfile()}
