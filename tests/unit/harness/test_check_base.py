"""What a base image of the engine must have."""

import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement

PATH = Path(__file__).resolve().parents[3] / "engine-image/check_base.py"


def load():
    spec = importlib.util.spec_from_file_location("check_base", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("accelerator", "version", "cuda", "word"),
    [
        ("cpu", "2.6.0+debian", None, None),
        ("cpu", "2.13.0+cu128", "12.8", None),
        ("cuda", "2.7.1+cu128", "12.8", None),
        ("cuda", "3.0.0", "13.0", None),
        ("cpu", "2.5.1", None, "use one with 2.6 or newer"),
        ("cuda", "1.13.1", "11.7", "use one with 2.6 or newer"),
        ("cuda", "2.6.0", None, "pass BASE_IMAGE with a CUDA torch"),
        ("rocm", "2.6.0", None, "use cpu or cuda"),
    ],
)
def test_base(accelerator: str, version: str, cuda: str | None, word: str | None) -> None:
    complaint = load().complaint(accelerator, version, cuda)
    assert complaint is None if word is None else word in complaint


@pytest.mark.parametrize(("accelerator", "status"), [("cpu", 0), ("cuda", 0), ("rocm", 1)])
def test_the_check_as_the_build_runs_it(accelerator: str, status: int) -> None:
    """PyPI's torch, which the tests run on, is a CUDA build."""
    assert torch.version.cuda is not None
    done = subprocess.run(
        [sys.executable, str(PATH), accelerator], capture_output=True, text=True, check=False
    )
    assert done.returncode == status, done.stderr
    assert ("use cpu or cuda" in done.stderr) == (status == 1)


def test_a_cuda_torch_is_what_the_engine_asks_for() -> None:
    """So that pip leaves the base's torch, whose version has the CUDA version behind a plus."""
    project = tomllib.loads((PATH.parent / "pyproject.toml").read_text())["project"]
    asked = [Requirement(text) for text in project["optional-dependencies"]["torch"]]
    (needed,) = [requirement for requirement in asked if requirement.name == "torch"]
    for version in (torch.__version__, "2.7.1+cu128"):
        assert needed.specifier.contains(version), version
