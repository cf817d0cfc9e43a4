"""Builds the project's container images with buildah, once per content.

`python tests/support/images.py` builds what is missing and prints each reference with its archive.
The base images come from mmdebstrap, in the shape of the public ones the Dockerfiles name by
default: nothing here needs a container registry.
"""

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path

from support.steps import Progress, run_step, seconds_since

ROOT = Path(__file__).resolve().parents[2]
REPOSITORY = "docker.io/enginecore"
_SOURCE_TIME = 1_700_000_000
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


@dataclass(frozen=True)
class Base:
    """A Debian with a few packages, standing for a public image.

    Attributes:
        suite: Debian release.
        packages: what it holds beside the minimal system.
    """

    suite: str
    packages: tuple[str, ...]

    @property
    def key(self) -> str:
        return _digest([(self.suite, " ".join(self.packages).encode())])


@dataclass(frozen=True)
class Image:
    """One image of the project.

    Attributes:
        name: last part of its repository.
        dockerfile: path of its Dockerfile from the root.
        base: what it is built on.
        sources: files and directories whose content decides its own.
    """

    name: str
    dockerfile: str
    base: Base
    sources: tuple[str, ...]

    def snapshot(self) -> "Snapshot":
        """Read the sources once: what is built is what the key says, whoever edits meanwhile."""
        return Snapshot(self, tuple(_contents(self.sources)))


@dataclass(frozen=True)
class Snapshot:
    """The sources of an image: (path from the root, content) of each file."""

    image: Image
    files: tuple[tuple[str, bytes], ...]

    @property
    def key(self) -> str:
        return _digest([("base", self.image.base.key.encode()), *self.files])

    @property
    def reference(self) -> str:
        return f"{REPOSITORY}/{self.image.name}:dev-{self.key}"

    def write(self, directory: Path) -> None:
        """Write the files, all with one time, so that equal sources make equal layers."""
        for name, content in self.files:
            file = directory / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
            os.utime(file, (_SOURCE_TIME, _SOURCE_TIME))


@dataclass(frozen=True)
class BuiltImage:
    """An image in the cache: its reference and the OCI archive that holds it."""

    reference: str
    archive: Path

    @property
    def repository(self) -> str:
        return self.reference.rpartition(":")[0]

    @property
    def tag(self) -> str:
        return self.reference.rpartition(":")[2]


SLIM = Base("trixie", ("ca-certificates", "python3", "python3-venv"))
TORCH = Base("trixie", (*SLIM.packages, "python3-torch"))

OPERATOR = Image(
    name="operator",
    dockerfile="operator/Dockerfile",
    base=SLIM,
    sources=("operator", "client", ".dockerignore"),
)
ENGINE = Image(
    name="engine",
    dockerfile="engine-image/Dockerfile",
    base=TORCH,
    sources=("engine-image", "client", ".dockerignore"),
)
IMAGES = {image.name: image for image in (OPERATOR, ENGINE)}


def images_cache() -> Path:
    """Return the directory with archives and layers; safe to delete while nothing builds."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "enginecore" / "images"


def build_images(names: Iterable[str], progress: Progress) -> dict[str, BuiltImage]:
    """Build every named image that the cache does not hold.

    Args:
        names: keys of IMAGES.
        progress: takes one line of text per step.

    Returns:
        Name → the image.

    Raises:
        StepError: a program is missing or a build failed.
    """
    return {name: _built(IMAGES[name], images_cache(), progress) for name in names}


def _built(image: Image, cache: Path, progress: Progress) -> BuiltImage:
    snapshot = image.snapshot()
    archive = cache / f"{image.name}-{snapshot.key}.tar"
    if archive.exists():
        return BuiltImage(snapshot.reference, archive)
    with _locked(cache / "lock", progress):
        if archive.exists():
            return BuiltImage(snapshot.reference, archive)
        started = time.monotonic()
        log = cache / "logs" / f"{image.name}-{snapshot.key}.log"
        storage = _Storage(cache)
        try:
            base = _base(image.base, storage, log, progress)
            _build(snapshot, base, storage, log, progress)
            _export(snapshot, archive, storage, log, progress)
            storage.forget_older(snapshot.reference)
        finally:
            storage.close()
        for old in cache.glob(f"{image.name}-*.tar"):
            if old != archive:
                old.unlink()
        size = archive.stat().st_size / 1e6
        progress(f"built {snapshot.reference}: {size:.0f} MB in {seconds_since(started)}")
    return BuiltImage(snapshot.reference, archive)


class _Storage:
    """The images' own store of layers, apart from the user's."""

    def __init__(self, cache: Path) -> None:
        self._root = cache / "storage"
        self._run = Path("/run/enginecore-images")
        self.scratch = cache

    def buildah(self, *arguments: str) -> list[str]:
        place = ["--root", str(self._root), "--runroot", str(self._run)]
        return ["buildah", *place, *arguments]

    def has(self, reference: str) -> bool:
        command = self.buildah("inspect", "--type", "image", reference)
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def forget_older(self, newest: str) -> None:
        """Remove the earlier builds of an image; layers that the newest shares stay."""
        listed = subprocess.run(
            self.buildah("images", "--format", "{{.Name}}:{{.Tag}}"),
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        prefix = newest.rpartition(":")[0] + ":"
        older = [name for name in listed if name.startswith(prefix) and name != newest]
        if older:
            subprocess.run(self.buildah("rmi", *older), capture_output=True, check=True)

    def close(self) -> None:
        """End the mount the overlay driver leaves on its root, and its files in /run."""
        mount = str(self._root / "overlay")
        if any(line.split()[1] == mount for line in Path("/proc/mounts").read_text().splitlines()):
            subprocess.run(["umount", mount], check=True)
        shutil.rmtree(self._run, ignore_errors=True)


def _base(base: Base, storage: _Storage, log: Path, progress: Progress) -> str:
    reference = f"localhost/enginecore/base:{base.key}"
    if storage.has(reference):
        return reference
    tree = storage.scratch / f".base-{base.key}.tar"
    title = f"base image ({base.suite}, {', '.join(base.packages)})"
    run_step(
        title,
        ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(base.packages)}",
         "--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-exclude=/usr/share/man/*",
         base.suite, str(tree)],
        log,
        progress,
    )  # fmt: skip
    try:
        dockerfile = storage.scratch / f".base-{base.key}.Dockerfile"
        dockerfile.write_text(f'FROM scratch\nADD {tree.name} /\nCMD ["/bin/bash"]\n')
        ignore = dockerfile.with_name(dockerfile.name + ".dockerignore")
        ignore.write_text(f"*\n!{tree.name}\n")
        run_step(
            title,
            storage.buildah("build-using-dockerfile", "--isolation", "chroot", "--ignorefile",
                            str(ignore), "--file", str(dockerfile), "--tag", reference,
                            str(storage.scratch)),
            log,
            progress,
        )  # fmt: skip
    finally:
        for scratch in storage.scratch.glob(f".base-{base.key}.*"):
            scratch.unlink()
    return reference


def _build(snapshot: Snapshot, base: str, storage: _Storage, log: Path, progress: Progress) -> None:
    options = ["--isolation", "chroot", "--network", "host", "--layers"]
    if CERTIFICATES.exists():
        options += ["--volume", f"{CERTIFICATES}:{CERTIFICATES}:ro"]
    with tempfile.TemporaryDirectory(dir=storage.scratch, prefix=".context-") as context:
        snapshot.write(Path(context))
        run_step(
            f"image {snapshot.image.name}",
            storage.buildah("build-using-dockerfile", *options, "--build-arg", f"BASE_IMAGE={base}",
                            "--file", f"{context}/{snapshot.image.dockerfile}",
                            "--tag", snapshot.reference, context),
            log,
            progress,
        )  # fmt: skip


def _export(
    snapshot: Snapshot, archive: Path, storage: _Storage, log: Path, progress: Progress
) -> None:
    draft = archive.with_suffix(".new")
    draft.unlink(missing_ok=True)
    run_step(
        f"archive of {snapshot.image.name}",
        storage.buildah("push", "--disable-compression", snapshot.reference,
                        f"oci-archive:{draft}:{snapshot.reference}"),
        log,
        progress,
    )  # fmt: skip
    draft.replace(archive)


@contextlib.contextmanager
def _locked(path: Path, progress: Progress) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as stream:
        try:
            flock(stream, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            progress("waiting: another process builds images")
            flock(stream, LOCK_EX)
        yield


def _contents(sources: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    for source in sources:
        path = ROOT / source
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            relative = file.relative_to(ROOT)
            ignored = any(part == "__pycache__" or part.endswith(".egg-info") or part == "build"
                          for part in relative.parts)  # fmt: skip
            if file.is_file() and not ignored:
                yield str(relative), file.read_bytes()


def _digest(parts: Iterable[tuple[str, bytes]]) -> str:
    digest = hashlib.sha256()
    for name, content in parts:
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:12]


def _say(line: str) -> None:
    sys.stdout.write(f"   {line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    for built in build_images(sys.argv[1:] or IMAGES, _say).values():
        sys.stdout.write(f"{built.reference} {built.archive}\n")
