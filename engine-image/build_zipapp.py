"""Write the engine server as one file: python build_zipapp.py SOURCES… TARGET.

The file holds enginecore_server, enginecore_curve and enginecore_wire as source and nothing else;
pyzmq, msgspec, aiohttp and prometheus-client are those of the Python that runs it, as vLLM's images
have them.
Equal sources make equal bytes: entries are sorted, dated alike and not compressed.
"""

import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("enginecore_server", "enginecore_curve", "enginecore_wire")
OLDEST_DATE = (1980, 1, 1, 0, 0, 0)
"""The earliest that a zip file knows."""

START = '''\
"""Start the engine server, or say what this Python lacks for it."""

import sys

PROGRAM = "enginecore-server"
if sys.version_info < (3, 11):
    sys.exit(
        f"{PROGRAM}: this image's python3 is {sys.version.split()[0]}, 3.11 or newer is needed; "
        "set spec.runtime.image to an image that has it"
    )
try:
    import aiohttp, msgspec, prometheus_client, zmq
except ImportError as error:
    sys.exit(
        f"{PROGRAM}: this image's python3 cannot import {error.name} ({error}); set "
        "spec.runtime.image to a vLLM image, in which python3 is the Python that has vLLM"
    )
from enginecore_server.__main__ import main

sys.exit(main())
'''


def entries(sources: dict[str, Path]) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each file of the packages; `sources` is package → directory."""
    for package, directory in sorted(sources.items()):
        for file in sorted(directory.rglob("*.py")):
            yield f"{package}/{file.relative_to(directory).as_posix()}", file.read_bytes()


def write(sources: dict[str, Path], target: Path) -> None:
    """Write the archive."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        for name, content in [("__main__.py", START.encode()), *entries(sources)]:
            info = zipfile.ZipInfo(name, OLDEST_DATE)
            info.create_system = 3  # as on Unix, wherever it is written
            info.external_attr = 0o100644 << 16
            archive.writestr(info, content)
    target.chmod(0o644)


def find(package: str, places: list[Path]) -> Path:
    """Return where a package is. Exits where it is in none of the places."""
    for place in places:
        if (place / package / "__init__.py").is_file():
            return place / package
    sys.exit(f"there is no package {package} in {', '.join(map(str, places))}")


def main(arguments: list[str]) -> None:
    """Write the archive that the arguments name."""
    *places, target = map(Path, arguments)
    write({package: find(package, places) for package in PACKAGES}, target)


if __name__ == "__main__":
    main(sys.argv[1:])
