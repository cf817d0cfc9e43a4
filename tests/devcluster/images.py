"""Base images from Debian packages, and images from Dockerfiles, as OCI archives."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from devcluster.errors import DevclusterError
from devcluster.imagestore import ImageStore, run_reporting
from devcluster.locks import Progress, file_lock
from devcluster.ociarchive import ImageConfig, write_archive
from devcluster.packages import IMAGE_PACKAGES, ensure_packages

_RECIPE_VERSION = 2
_IMAGE_AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
_AUTHORITY_VARIABLES = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
_PIP_OPTIONS = (
    "index-url",
    "extra-index-url",
    "find-links",
    "trusted-host",
    "proxy",
    "default-timeout",
    "retries",
)


@dataclass(frozen=True)
class BaseImage:
    """A Debian file system that stands for a public base image.

    Attributes:
        suite: Debian release.
        packages: what it holds beyond the minimal base.
    """

    suite: str
    packages: tuple[str, ...]

    @property
    def key(self) -> str:
        """Digest of what decides its content (its packages' versions do not)."""
        words = json.dumps([_RECIPE_VERSION, self.suite, sorted(self.packages)])
        return hashlib.sha256(words.encode()).hexdigest()[:16]


_PYTHON = ("ca-certificates", "python3", "python3-venv")
BASES: dict[str, BaseImage] = {
    # In place of python:3.13-slim.
    "python": BaseImage("trixie", _PYTHON),
    # Debian's torch 2.6 for CPUs; PyPI's is the CUDA build, three times as large. Without
    # OpenBLAS it multiplies matrices with the reference BLAS, eight times slower.
    "torch": BaseImage("trixie", (*_PYTHON, "libopenblas0-openmp", "python3-torch")),
    # In place of vLLM's: Python 3.11, for which this machine's vLLM was installed, and what the
    # CPU build of vLLM is linked with.
    "vllm": BaseImage("bookworm", (*_PYTHON, "libnuma1")),
}


def build_base(name: str, folder: Path, progress: Progress) -> Path:
    """Makes sure a base image is in the cache.

    Args:
        name: one of `BASES`.
        folder: the image cache.
        progress: takes one line of text per step.

    Returns:
        Its OCI archive; the image in it is called `base_reference`.

    Raises:
        DevclusterError: the name is unknown or a tool failed.
    """
    if name not in BASES:
        raise DevclusterError(f"base {name!r} is unknown: choose one of {', '.join(BASES)}")
    base = BASES[name]
    target = ImageStore(folder).archive(f"base-{name}", base.key)
    folder.mkdir(parents=True, exist_ok=True)
    with file_lock(target.with_suffix(".lock"), f"base image {name}", progress):
        if target.exists():
            return target
        ensure_packages(IMAGE_PACKAGES, progress)
        progress(f"building base image {name}: Debian {base.suite}, {' '.join(base.packages)}")
        started = time.monotonic()
        with tempfile.TemporaryDirectory(dir=folder, prefix=".base-") as scratch:
            layer = Path(scratch) / "layer.tar"
            run_reporting(_mmdebstrap(base, layer), "mmdebstrap", progress)
            write_archive(layer, target, base_reference(name), ImageConfig())
        size = target.stat().st_size / 1e6
        progress(f"built base image {name}: {size:.0f} MB in {time.monotonic() - started:.0f} s")
    return target


def base_reference(name: str) -> str:
    """Returns the full image name of a base."""
    return f"localhost/enginecore/base-{name}:{BASES[name].key}"


def _mmdebstrap(base: BaseImage, target: Path) -> list[str]:
    return [
        "mmdebstrap",
        "--variant=minbase",
        "--mode=root",
        f"--include={','.join(base.packages)}",
        "--dpkgopt=path-exclude=/usr/share/doc/*",
        "--dpkgopt=path-exclude=/usr/share/man/*",
        "--dpkgopt=path-exclude=/usr/share/locale/*",
        # Copied from this machine, of which an image knows nothing.
        '--customize-hook=rm --force "$1/etc/resolv.conf" "$1/etc/hostname"',
        base.suite,
        str(target),
    ]


@dataclass(frozen=True)
class ImageBuild:
    """One Dockerfile to build.

    Attributes:
        dockerfile: its path.
        context: build context.
        tag: full name of the image, such as ``localhost/enginecore/operator:0.1.0``.
        base: one of `BASES`, given as the build argument BASE_IMAGE.
        arguments: further build arguments.
        target: stage to stop after; empty: the last.
    """

    dockerfile: Path
    context: Path
    tag: str
    base: str
    arguments: Mapping[str, str]
    target: str = ""


def build_image(
    build: ImageBuild,
    folder: Path,
    progress: Progress,
    environ: Mapping[str, str] = os.environ,
) -> Path:
    """Builds an image on a base; layers that did not change come from the cache.

    pip's settings and the certificate authorities of this machine hold during
    the build and are not written into the image.

    Args:
        build: what to build.
        folder: the image cache.
        progress: takes one line of text per step.
        environ: environment pip's settings are taken from.

    Returns:
        Its OCI archive.

    Raises:
        DevclusterError: a tool failed.
    """
    started = time.monotonic()
    with _open_store(build.base, folder, progress) as store:
        _build(store, build, progress, environ)
        identifier = store.buildah("images", "--quiet", "--no-trunc", build.tag).strip()
        target = store.archive(build.tag, identifier.rpartition(":")[2][:16])
        if not target.exists():
            _export(store, build.tag, target)
        progress(f"built {build.tag} in {time.monotonic() - started:.0f} s")
    return target


def try_build(
    build: ImageBuild,
    folder: Path,
    progress: Progress,
    environ: Mapping[str, str] = os.environ,
) -> None:
    """Builds an image as `build_image` does, for nothing but further builds on it.

    Raises:
        DevclusterError: a tool failed; the message holds the end of its output.
    """
    with _open_store(build.base, folder, progress) as store:
        _build(store, build, progress, environ)


@contextlib.contextmanager
def _open_store(base: str, folder: Path, progress: Progress) -> Iterator[ImageStore]:
    """Gives the image store, with a base in it, to one builder at a time."""
    store = ImageStore(folder)
    ensure_packages(IMAGE_PACKAGES, progress)
    archive = build_base(base, folder, progress)
    with file_lock(folder / "storage.lock", "the image store", progress):
        # What a build left that was killed.
        store.buildah("rm", "--all")
        reference = base_reference(base)
        if not store.buildah("images", "--quiet", "--filter", f"reference={reference}"):
            progress(f"taking {reference} into the image store")
            identifier = store.buildah("pull", "--quiet", f"oci-archive:{archive}").split()[-1]
            store.buildah("tag", identifier, reference)
        yield store


def _build(
    store: ImageStore, build: ImageBuild, progress: Progress, environ: Mapping[str, str]
) -> None:
    progress(f"building {build.tag}")
    arguments = {"BASE_IMAGE": base_reference(build.base), **build.arguments}
    with tempfile.TemporaryDirectory(dir=store.folder, prefix=".build-") as scratch:
        mounts = build_mounts(environ, Path(scratch))
        store.buildah(*_bud(build, arguments, mounts), progress=progress)


def _bud(
    build: ImageBuild, arguments: Mapping[str, str], mounts: Sequence[str]
) -> list[str | Path]:
    return [
        *("build", "--layers", "--pull-never", "--isolation=chroot", "--network=host"),
        *(f"--volume={mount}" for mount in mounts),
        *(f"--build-arg={name}={value}" for name, value in arguments.items()),
        *([f"--target={build.target}"] if build.target else []),
        *("--file", build.dockerfile, "--tag", build.tag, build.context),
    ]


def _export(store: ImageStore, tag: str, target: Path) -> None:
    prefix = target.name.rpartition("-")[0]
    for old in target.parent.glob(f"{prefix}-*.oci.tar"):
        old.unlink()
    draft = target.with_suffix(".new")
    draft.unlink(missing_ok=True)
    # The archive stays on this machine, where compressing costs more than it saves.
    store.buildah("push", "--quiet", "--disable-compression", tag, f"oci-archive:{draft}:{tag}")
    os.replace(draft, target)


def build_mounts(environ: Mapping[str, str], scratch: Path) -> list[str]:
    """Returns the volumes that let pip work in a build as it does on this machine.

    Args:
        environ: environment pip's settings are taken from.
        scratch: directory for the configuration file that is mounted.
    """
    config = scratch / "pip.conf"
    config.write_text(pip_config(environ))
    mounts = [f"{config}:/etc/pip.conf:ro"]
    authorities = next(
        (Path(environ[name]) for name in _AUTHORITY_VARIABLES if environ.get(name)),
        _IMAGE_AUTHORITIES,
    )
    if authorities.is_file():
        mounts.append(f"{authorities}:{_IMAGE_AUTHORITIES}:ro")
    for word in environ.get("PIP_FIND_LINKS", "").split():
        if Path(word).is_dir():
            mounts.append(f"{word}:{word}:ro")
    return mounts


def pip_config(environ: Mapping[str, str]) -> str:
    """Renders pip's settings from the environment as a configuration file."""
    lines = ["[global]", f"cert = {_IMAGE_AUTHORITIES}", "disable-pip-version-check = true"]
    for option in _PIP_OPTIONS:
        value = environ.get(f"PIP_{option.replace('-', '_').upper()}")
        if value:
            lines.append(f"{option} = {value}")
    return "\n".join(lines) + "\n"
