"""Writes, or checks, what is generated around the chart.

- charts/enginecore/files/crds: the CRDs, copied from manifests/crds
- descriptions in values.schema.json and the table in README.md, from the comments in values.yaml
- manifests/install/install.yaml: the chart, rendered for kubectl (HELM names the helm to use)
- with --package, at a release: tests/golden/charts/enginecore-VERSION.tgz, the chart of this
  version for later upgrade tests; it is written once
"""

import argparse
import difflib
import gzip
import io
import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "charts/enginecore"
CRDS = ROOT / "manifests/crds"
PACKAGES = ROOT / "tests/golden/charts"
NAMESPACE = "enginecore-system"
TABLE_START = "<!-- values: make generate -->\n"
TABLE_END = "<!-- end of values -->\n"
INSTALL_HEADER = f"""\
# Rendered from charts/enginecore (make generate); do not edit.
#   kubectl apply --server-side -f manifests/install/install.yaml
apiVersion: v1
kind: Namespace
metadata:
  name: {NAMESPACE}
"""

_KEY = re.compile(r"^(?P<indent> *)(?P<key>[A-Za-z][A-Za-z0-9]*):")


@dataclass(frozen=True)
class Value:
    """One documented value: its path, such as operator.replicas, its default and its comment."""

    path: str
    default: Any
    description: str


def documented_values(text: str) -> list[Value]:
    """Read values.yaml: every key that has a comment which begins with two dashes."""
    tree = yaml.safe_load(text)
    found: list[Value] = []
    parents: list[tuple[int, str]] = []
    comment: list[str] = []
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("# --"):
            comment = [stripped.removeprefix("# --").strip()]
        elif stripped.startswith("#") and comment:
            comment.append(stripped.removeprefix("#").strip())
        elif match := _KEY.match(line):
            indent = len(match["indent"])
            parents = [item for item in parents if item[0] < indent] + [(indent, match["key"])]
            path = [key for _, key in parents]
            if comment:
                found.append(Value(".".join(path), _look_up(tree, path), " ".join(comment)))
            comment = []
    return found


def described_schema(schema: Mapping[str, Any], values: Sequence[Value]) -> dict[str, Any]:
    """Return the schema with every value's comment as its description.

    Raises:
        KeyError: a value is not in the schema.
    """
    tree: dict[str, Any] = json.loads(json.dumps(schema))
    for value in values:
        node = tree
        for key in value.path.split("."):
            node = node["properties"][key]
        kind = {name: node[name] for name in node if name != "description"}
        node.clear()
        node.update({"description": value.description, **kind})
    return tree


def values_table(values: Sequence[Value]) -> str:
    """Return the Markdown table of values."""
    rows = [
        f"| `{value.path}` | `{json.dumps(value.default)}` | {value.description} |"
        for value in values
    ]
    return "\n".join(["| value | default | meaning |", "|---|---|---|", *rows]) + "\n"


def with_table(readme: str, table: str) -> str:
    """Return the README with the table between its two marks.

    Raises:
        ValueError: a mark is missing.
    """
    head, _, rest = readme.partition(TABLE_START)
    _, found, tail = rest.partition(TABLE_END)
    if not found:
        raise ValueError(f"README.md has no {TABLE_START.strip()} … {TABLE_END.strip()}")
    return f"{head}{TABLE_START}{table}{TABLE_END}{tail}"


def render_install(helm: str, chart: Path) -> str:
    """Return the manifests that `kubectl apply` takes instead of the chart.

    Raises:
        SystemExit: helm is not there, or does not render the chart.
    """
    command = [helm, "template", "enginecore", str(chart), "--namespace", NAMESPACE]
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError:
        sys.exit(f"there is no program {helm!r}: run make generate, or set HELM to helm's path")
    except subprocess.CalledProcessError as error:
        sys.exit(f"helm does not render the chart: {error.stderr.strip()}")
    return INSTALL_HEADER + done.stdout


def packaged_files(chart: Path) -> dict[str, bytes]:
    """Return what belongs into the package: name in the archive → content."""
    left_out = {"ci", ".helmignore"}
    return {
        f"{chart.name}/{path.relative_to(chart)}": path.read_bytes()
        for path in sorted(chart.rglob("*"))
        if path.is_file() and path.relative_to(chart).parts[0] not in left_out
    }


def pack(files: Mapping[str, bytes]) -> bytes:
    """Return a .tgz of the files that depends on nothing but them."""
    packed = io.BytesIO()
    with (
        gzip.GzipFile(filename="", fileobj=packed, mode="wb", mtime=0) as stream,
        tarfile.open(fileobj=stream, mode="w") as archive,
    ):
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def write_package() -> Path:
    """Write the package of this version and return its path.

    Raises:
        SystemExit: there is one, which stays as it was released.
    """
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["version"]
    package = PACKAGES / f"enginecore-{version}.tgz"
    if package.exists():
        sys.exit(f"{package.name} is released already: give the next one a version of its own")
    package.parent.mkdir(parents=True, exist_ok=True)
    package.write_bytes(pack(packaged_files(CHART)))
    return package


def write_inputs() -> dict[Path, str]:
    """Return path → content of what the chart itself holds."""
    values = documented_values((CHART / "values.yaml").read_text())
    schema_path, readme_path = CHART / "values.schema.json", CHART / "README.md"
    schema = described_schema(json.loads(schema_path.read_text()), values)
    files = {CHART / "files/crds" / path.name: path.read_text() for path in CRDS.glob("*.yaml")}
    files[schema_path] = json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
    files[readme_path] = with_table(readme_path.read_text(), values_table(values))
    return files


def main() -> int:
    """Write or check; returns 1 where a file was not up to date in a check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only compare; show what differs")
    parser.add_argument("--package", action="store_true", help="also keep this version's chart")
    options = parser.parse_args()
    check = options.check
    stale = [path for path, text in write_inputs().items() if not settle(path, text, check)]
    install = ROOT / "manifests/install/install.yaml"
    if not settle(install, render_install(os.environ.get("HELM", "helm"), CHART), check):
        stale.append(install)
    if options.package and not check:
        write_package()
    if stale:
        names = ", ".join(str(path.relative_to(ROOT)) for path in stale)
        sys.stderr.write(f"not up to date: {names}; run make generate\n")
    return 1 if stale else 0


def settle(path: Path, text: str, check: bool) -> bool:
    """Write the text, or compare it; returns False where a comparison found a difference."""
    present = path.read_text() if path.exists() else ""
    if not check:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return True
    difference = difflib.unified_diff(
        present.splitlines(True), text.splitlines(True), str(path), "generated", n=1
    )
    sys.stderr.writelines(difference)
    return present == text


def _look_up(tree: Any, path: Sequence[str]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


if __name__ == "__main__":
    sys.exit(main())
