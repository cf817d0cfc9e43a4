"""What a base image of the engine must have."""

import importlib.util
from pathlib import Path

import pytest

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
