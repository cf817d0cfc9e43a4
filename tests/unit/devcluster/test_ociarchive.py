"""Image archives are whole, and say what they hold."""

import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from devcluster.ociarchive import ImageConfig, image_digests, single_file_layer, write_archive

NAME = "localhost/enginecore/x:1"


@pytest.fixture
def layer(tmp_path: Path) -> Path:
    program = tmp_path / "pause"
    program.write_bytes(b"\x7fELF program")
    target = tmp_path / "layer.tar"
    single_file_layer(program, target)
    return target


def blobs_of(archive: Path) -> dict[str, bytes]:
    found = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            stream = tar.extractfile(member)
            assert stream is not None
            found[member.name] = stream.read()
    return found


def follow(entry: dict[str, Any], blobs: dict[str, bytes]) -> bytes:
    algorithm, digest = entry["digest"].split(":")
    content = blobs[f"blobs/{algorithm}/{digest}"]
    assert hashlib.sha256(content).hexdigest() == digest
    assert len(content) == entry["size"]
    return content


def test_every_digest_leads_to_its_content(tmp_path: Path, layer: Path) -> None:
    archive = tmp_path / "out" / "image.tar"
    write_archive(layer, archive, NAME, ImageConfig(entrypoint=["/pause"]))
    blobs = blobs_of(archive)
    (entry,) = json.loads(blobs["index.json"])["manifests"]
    assert entry["annotations"]["org.opencontainers.image.ref.name"] == NAME
    manifest = json.loads(follow(entry, blobs))
    config = json.loads(follow(manifest["config"], blobs))
    (packed,) = manifest["layers"]
    assert follow(packed, blobs) == layer.read_bytes()
    assert config["rootfs"]["diff_ids"] == [packed["digest"]]
    assert len(config["history"]) == 1
    assert config["config"]["Entrypoint"] == ["/pause"]
    assert image_digests(archive) == {NAME: entry["digest"]}
    assert len(blobs) == 5
    assert [path.name for path in archive.parent.iterdir()] == ["image.tar"]


def test_layer_holds_the_program(layer: Path) -> None:
    with tarfile.open(layer) as tar:
        (member,) = tar
        assert (member.name, member.mode) == ("pause", 0o755)


def test_another_kind_of_archive_tells_no_names(layer: Path) -> None:
    assert image_digests(layer) == {}


def test_failure_leaves_no_archive(tmp_path: Path) -> None:
    archive = tmp_path / "out" / "image.tar"
    with pytest.raises(FileNotFoundError):
        write_archive(tmp_path / "no-layer", archive, NAME, ImageConfig())
    assert list(archive.parent.iterdir()) == []
