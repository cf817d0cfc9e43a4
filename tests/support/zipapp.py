"""The engine server as one file, and a Python with what vLLM images have but our packages."""

import importlib.util
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

from support.images import ROOT

SOURCES = (ROOT / "client/src", ROOT / "engine-image/src")
OURS = ("enginecore", "__editable__")


def load_builder() -> ModuleType:
    """Return engine-image/build_zipapp.py as a module."""
    spec = importlib.util.spec_from_file_location(
        "build_zipapp", ROOT / "engine-image/build_zipapp.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def build_zipapp(directory: Path) -> Path:
    """Build the file in a directory."""
    target = directory / "enginecore-server.pyz"
    load_builder().main([*map(str, SOURCES), str(target)])
    return target


def foreign_packages(directory: Path) -> Path:
    """Make a directory of all installed packages but ours, for PYTHONPATH."""
    directory.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith(OURS):
            (directory / entry.name).symlink_to(entry)
    return directory


def bare_python() -> tuple[str, ...]:
    """Return a command line of Python that looks for packages in PYTHONPATH alone."""
    return (sys.executable, "-S")
