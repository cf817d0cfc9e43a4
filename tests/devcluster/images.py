"""Base images from Debian packages, and images from Dockerfiles, as OCI archives."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from devcluster.errors import DevclusterError
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
# Of this boot only: it counts mounts.
_RUN_ROOT = Path("/run/enginecore-devcluster/images")
_REPORT_SECONDS = 20.0


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
    # Python 3.11.
    "bookworm": BaseImage("bookworm", _PYTHON),
}


@dataclass(frozen=True)
class ImageStore:
    """Where images are kept and built.

    Attributes:
        folder: below the cache.
    """

    folder: Path

    def archive(self, name: str, key: str) -> Path:
        return self.folder / f"{name.replace('/', '_').replace(':', '_')}-{key}.oci.tar"

    def buildah(self, *arguments: str | Path, progress: Progress | None = None) -> str:
        """Runs buildah on the store's own storage and returns what it prints.

        Raises:
            DevclusterError: it failed; the message holds the end of its output.
        """
        storage = self.folder / "storage"
        command: list[str | Path] = ["buildah", "--root", storage, "--runroot", _RUN_ROOT]
        try:
            return _run([*command, *arguments], "buildah", progress)
        finally:
            # The overlay driver leaves its folder mounted on itself; busy while another one runs.
            subprocess.run(["umount", storage / "overlay"], capture_output=True, check=False)


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
            _run(_mmdebstrap(base, layer), "mmdebstrap", progress)
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
    """

    dockerfile: Path
    context: Path
    tag: str
    base: str
    arguments: Mapping[str, str]


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
    store = ImageStore(folder)
    ensure_packages(IMAGE_PACKAGES, progress)
    base = build_base(build.base, folder, progress)
    with (
        file_lock(folder / "storage.lock", "the image store", progress),
        tempfile.TemporaryDirectory(dir=folder, prefix=".build-") as scratch,
    ):
        started = time.monotonic()
        # What a build left that was killed.
        store.buildah("rm", "--all")
        reference = base_reference(build.base)
        if not store.buildah("images", "--quiet", "--filter", f"reference={reference}"):
            progress(f"taking {reference} into the image store")
            identifier = store.buildah("pull", "--quiet", f"oci-archive:{base}").split()[-1]
            store.buildah("tag", identifier, reference)
        progress(f"building {build.tag}")
        arguments = {"BASE_IMAGE": reference, **build.arguments}
        mounts = build_mounts(environ, Path(scratch))
        store.buildah(*_bud(build, arguments, mounts), progress=progress)
        identifier = store.buildah("images", "--quiet", "--no-trunc", build.tag).strip()
        target = store.archive(build.tag, identifier.rpartition(":")[2][:16])
        if not target.exists():
            _export(store, build.tag, target)
        progress(f"built {build.tag} in {time.monotonic() - started:.0f} s")
    return target


def _bud(
    build: ImageBuild, arguments: Mapping[str, str], mounts: Sequence[str]
) -> list[str | Path]:
    return [
        *("build", "--layers", "--pull-never", "--isolation=chroot", "--network=host"),
        *(f"--volume={mount}" for mount in mounts),
        *(f"--build-arg={name}={value}" for name, value in arguments.items()),
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


def _run(command: Sequence[str | Path], what: str, progress: Progress | None) -> str:
    started = time.monotonic()
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        while True:
            try:
                output, _ = process.communicate(timeout=_REPORT_SECONDS)
                break
            except subprocess.TimeoutExpired:
                if progress is not None:
                    progress(f"{what}: {time.monotonic() - started:.0f} s so far")
        errors.seek(0)
        complaint = errors.read()
    if process.returncode != 0:
        raise DevclusterError(f"{what} failed:\n{(output + complaint).strip()[-3000:]}")
    return output
