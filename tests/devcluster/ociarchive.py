"""Writes OCI image archives with one layer, without any container tool."""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_NAME = "org.opencontainers.image.ref.name"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class ImageConfig:
    """How the image runs.

    Attributes:
        entrypoint: command of its containers.
        environment: ``NAME=value`` entries.
    """

    entrypoint: Sequence[str] = ()
    environment: Sequence[str] = field(
        default=("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",)
    )


def write_archive(layer: Path, target: Path, name: str, config: ImageConfig) -> None:
    """Packs a file system as an image.

    Args:
        layer: uncompressed tar file of the whole file system.
        target: the archive to write; it appears whole or not at all.
        name: full name with tag, under which the archive is imported.
        config: how the image runs.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".image-") as scratch:
        draft = Path(scratch) / "archive"
        with tarfile.open(draft, "w") as archive:
            layer_entry = _add_file(archive, layer, "application/vnd.oci.image.layer.v1.tar")
            tree = _config_tree(config, layer_entry["digest"])
            config_entry = _add_json(archive, tree, "application/vnd.oci.image.config.v1+json")
            manifest = {
                "schemaVersion": 2,
                "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "config": config_entry,
                "layers": [layer_entry],
            }
            entry = _add_json(archive, manifest, "application/vnd.oci.image.manifest.v1+json")
            entry["annotations"] = {_NAME: name}
            _add(archive, "index.json", json.dumps({"schemaVersion": 2, "manifests": [entry]}))
            _add(archive, "oci-layout", json.dumps({"imageLayoutVersion": "1.0.0"}))
        os.replace(draft, target)


def image_digests(archive: Path) -> dict[str, str]:
    """Returns image name → digest of an OCI archive's images, empty for another kind of archive.

    Raises:
        tarfile.ReadError: it is no tar file.
    """
    with tarfile.open(archive) as tar:
        try:
            stream = tar.extractfile("index.json")
        except KeyError:
            return {}
        assert stream is not None, "index.json of an OCI archive is a file"
        entries = json.load(stream)["manifests"]
    names = ((entry.get("annotations", {}).get(_NAME), entry["digest"]) for entry in entries)
    return {name: digest for name, digest in names if name}


def single_file_layer(program: Path, target: Path) -> None:
    """Writes a layer that holds one executable in its root directory."""
    with tarfile.open(target, "w") as layer:
        info = tarfile.TarInfo(program.name)
        info.mode = 0o755
        info.size = program.stat().st_size
        with program.open("rb") as stream:
            layer.addfile(info, stream)


def _config_tree(config: ImageConfig, diff_id: str) -> dict[str, Any]:
    machine = platform.machine()
    return {
        "architecture": _ARCHITECTURES.get(machine, machine),
        "os": "linux",
        "config": {"Entrypoint": list(config.entrypoint), "Env": list(config.environment)},
        "rootfs": {"type": "layers", "diff_ids": [diff_id]},
        # Builders refuse a layer that no history entry accounts for.
        "history": [{"created_by": "devcluster"}],
    }


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return f"sha256:{hashlib.file_digest(stream, 'sha256').hexdigest()}"


def _add_file(archive: tarfile.TarFile, path: Path, media_type: str) -> dict[str, Any]:
    digest = _digest(path)
    size = path.stat().st_size
    info = tarfile.TarInfo(f"blobs/sha256/{digest.removeprefix('sha256:')}")
    info.size = size
    with path.open("rb") as stream:
        archive.addfile(info, stream)
    return {"mediaType": media_type, "digest": digest, "size": size}


def _add_json(archive: tarfile.TarFile, tree: dict[str, Any], media_type: str) -> dict[str, Any]:
    content = json.dumps(tree, sort_keys=True)
    hexadecimal = hashlib.sha256(content.encode()).hexdigest()
    _add(archive, f"blobs/sha256/{hexadecimal}", content)
    return {"mediaType": media_type, "digest": f"sha256:{hexadecimal}", "size": len(content)}


def _add(archive: tarfile.TarFile, name: str, content: str) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content.encode())
    archive.addfile(info, io.BytesIO(content.encode()))
