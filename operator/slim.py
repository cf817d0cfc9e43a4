"""Run while the image is built: remove what the Kubernetes client generated and nobody imports.

Its models and one class per API group are three quarters of all that is installed; the operator
reads and writes plain JSON.
"""

import importlib
import pkgutil
import sys
from pathlib import Path

ENTRY_POINTS = ("enginecore_operator.__main__", "enginecore_coordinator.__main__")
GENERATED = tuple(
    f"kubernetes.{client}.{part}"
    for client in ("client", "aio.client")
    for part in ("api", "models")
)


def surplus(package: str) -> list[Path]:
    """Return the modules of a package that are not imported, and their compiled files."""
    directory = Path(importlib.import_module(package).__path__[0])
    found: list[Path] = []
    for module in pkgutil.iter_modules([str(directory)]):
        if f"{package}.{module.name}" not in sys.modules:
            found.append(directory / f"{module.name}.py")
            found += directory.glob(f"__pycache__/{module.name}.*.pyc")
    return found


if __name__ == "__main__":
    for name in ENTRY_POINTS:
        importlib.import_module(name)
    for path in [path for package in GENERATED for path in surplus(package)]:
        path.unlink()
