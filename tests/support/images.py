"""The project's container images, built once per content of their sources.

`python tests/support/images.py` builds what is missing and prints each reference with its archive.
"""

import hashlib
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from devcluster.images import BASES, ImageBuild, build_image
from devcluster.imagestore import ImageStore
from devcluster.locations import Locations
from devcluster.locks import Progress

ROOT = Path(__file__).resolve().parents[2]
REPOSITORY = "docker.io/enginecore"
SOURCE_TIME = 1_700_000_000


@dataclass(frozen=True)
class Image:
    """One image of the project.

    Attributes:
        name: last part of its repository.
        dockerfile: path of its Dockerfile from the root.
        base: key of BASES: what stands for the public image it is built on.
        sources: files and directories whose content decides its own.
    """

    name: str
    dockerfile: str
    base: str
    sources: tuple[str, ...]


OPERATOR = Image("operator", "operator/Dockerfile", "python", ("client", "operator"))
ENGINE = Image("engine", "engine-image/Dockerfile", "torch", ("client", "engine-image"))
SERVER = Image("server", "engine-image/server.Dockerfile", "python", ("client/src", "engine-image"))
IMAGES = {image.name: image for image in (OPERATOR, ENGINE, SERVER)}


@dataclass(frozen=True)
class BuiltImage:
    """An image in the cache: its reference, and the OCI archive that holds it."""

    reference: str
    archive: Path


@dataclass(frozen=True)
class Snapshot:
    """The sources as they were read once: (path from the root, content) of each file.

    What is built is what the key says, whoever edits the sources meanwhile.
    """

    image: Image
    files: tuple[tuple[str, bytes], ...]

    @property
    def key(self) -> str:
        """Return a digest of the base and the files."""
        digest = hashlib.sha256(BASES[self.image.base].key.encode())
        for name, content in self.files:
            digest.update(f"{name}\0{len(content)}\0".encode())
            digest.update(content)
        return digest.hexdigest()[:12]

    @property
    def reference(self) -> str:
        """Return the full name of the image."""
        return f"{REPOSITORY}/{self.image.name}:dev-{self.key}"

    def write(self, directory: Path) -> None:
        """Write the files, all with one time, so that equal sources make equal layers."""
        for name, content in self.files:
            file = directory / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
            os.utime(file, (SOURCE_TIME, SOURCE_TIME))


def take_snapshot(image: Image, root: Path = ROOT) -> Snapshot:
    """Read the sources of an image."""
    return Snapshot(image, tuple(_contents(image.sources, root)))


def build_images(names: Iterable[str], folder: Path, progress: Progress) -> dict[str, BuiltImage]:
    """Build every named image that the cache does not hold.

    Args:
        names: keys of IMAGES.
        folder: the image cache.
        progress: takes one line of text per step.

    Returns:
        Name → the image.

    Raises:
        DevclusterError: a program is missing or a build failed.
    """
    return {name: _built(take_snapshot(IMAGES[name]), folder, progress) for name in names}


def _built(snapshot: Snapshot, folder: Path, progress: Progress) -> BuiltImage:
    present = _archives(snapshot.image, folder, snapshot.key)
    if present:
        return BuiltImage(snapshot.reference, present[0])
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".context-") as context:
        snapshot.write(Path(context))
        build = ImageBuild(
            dockerfile=Path(context, snapshot.image.dockerfile),
            context=Path(context),
            tag=snapshot.reference,
            base=snapshot.image.base,
            arguments={},
        )
        archive = build_image(build, folder, progress)
    _forget_others(snapshot, folder)
    return BuiltImage(snapshot.reference, archive)


def _forget_others(snapshot: Snapshot, folder: Path) -> None:
    """Remove earlier builds of the image; layers that this one shares with them stay."""
    kept = _archives(snapshot.image, folder, snapshot.key)
    for archive in _archives(snapshot.image, folder, "*"):
        if archive not in kept:
            archive.unlink(missing_ok=True)
    store = ImageStore(folder)
    prefix = snapshot.reference.removesuffix(snapshot.key)
    listed = store.buildah("images", "--format", "{{.Name}}:{{.Tag}}").split()
    others = [name for name in listed if name.startswith(prefix) and name != snapshot.reference]
    if others:
        store.buildah("rmi", *others)


def _archives(image: Image, folder: Path, key: str) -> list[Path]:
    name = f"{REPOSITORY}/{image.name}".replace("/", "_")
    return list(folder.glob(f"{name}_dev-{key}-*.oci.tar"))


def _contents(sources: Iterable[str], root: Path) -> Iterator[tuple[str, bytes]]:
    for source in sources:
        for file in sorted((root / source).rglob("*")):
            relative = file.relative_to(root)
            derived = any(
                part in ("__pycache__", "build") or part.endswith(".egg-info")
                for part in relative.parts
            )
            if file.is_file() and not derived:
                yield str(relative), file.read_bytes()


def _say(line: str) -> None:
    sys.stdout.write(f"   {line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    cache = Locations.from_environment().images
    for built in build_images(sys.argv[1:] or IMAGES, cache, _say).values():
        sys.stdout.write(f"{built.reference} {built.archive}\n")
