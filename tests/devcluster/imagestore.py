"""The image builder's store, and slow programs that tell how far they are."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from devcluster.errors import DevclusterError
from devcluster.locks import Progress

# Of this boot only: it counts mounts.
_RUN_ROOT = Path("/run/enginecore-devcluster/images")
_REPORT_SECONDS = 20.0


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
            return run_reporting([*command, *arguments], "buildah", progress)
        finally:
            # The overlay driver leaves its folder mounted on itself; busy while another one runs.
            subprocess.run(["umount", storage / "overlay"], capture_output=True, check=False)


def run_reporting(command: Sequence[str | Path], what: str, progress: Progress | None) -> str:
    """Runs a program and returns what it prints; now and then says that it still runs.

    Args:
        command: its command line.
        what: its name in lines of progress and errors.
        progress: takes one line of text now and then, or is None.

    Raises:
        DevclusterError: it failed; the message holds the end of its output.
    """
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
