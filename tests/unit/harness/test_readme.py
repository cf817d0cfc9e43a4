"""README.md: what it shows can be run as it stands."""

import ast
import importlib
import re
import subprocess
from pathlib import Path
from typing import Any

import yaml

from enginecore_operator.api.v1alpha1 import EngineClusterSpec
from enginecore_operator.api.validate import read_spec
from support.checkpoint import checkpoint_dir

ROOT = Path(__file__).resolve().parents[3]
README = (ROOT / "README.md").read_text()


def blocks(language: str, *, holding: str) -> list[str]:
    """Return the fenced blocks of a language that hold some words."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return [block for kind, block in found if kind == language and holding in block]


def test_the_manifest_is_a_valid_part_of_the_sample() -> None:
    (text,) = blocks("yaml", holding="kind: EngineCluster")
    shown = yaml.safe_load(text)
    sample = yaml.safe_load((ROOT / "manifests/samples/smollm2.yaml").read_text())
    read_spec(shown["spec"], EngineClusterSpec)

    def missing(part: Any, whole: Any, path: str) -> list[str]:
        if isinstance(part, dict) and isinstance(whole, dict):
            return [m for key in part for m in missing(part[key], whole.get(key), f"{path}.{key}")]
        return [] if part == whole else [path]

    assert missing(shown, sample, "") == []


def test_the_lines_after_the_demo_apply_its_own_checkpoint() -> None:
    (block,) = blocks("", holding="CHECKPOINT=")
    lines = block.splitlines()
    assert lines[1].endswith("| kubectl apply -f -")
    script = "kubectl() { cat; }\n" + "\n".join(lines[:2])
    home = checkpoint_dir().parents[3]
    done = subprocess.run(
        ["bash", "-euc", script],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "HOME": str(home)},
        capture_output=True,
        text=True,
        check=True,
    )
    source = yaml.safe_load(done.stdout)["spec"]["model"]["source"]
    assert source == {"hostPath": str(home / ".cache/enginecore/models/smollm2")}


def test_the_client_takes_names_that_exist_and_follows_replacements() -> None:
    (program,) = blocks("python", holding="AsyncMPClient")
    tree = ast.parse(program)
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert imports
    for node in imports:
        module = importlib.import_module(node.module or "")
        assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []
    assert 'client_addresses=ClusterSource("smollm2")' in program


def test_what_pip_leaves_behind_is_ignored() -> None:
    assert "pip install './client" in README
    left = [f"{package}/build/lib/x.py" for package in ("client", "engine-image", "operator")]
    done = subprocess.run(
        ["git", "check-ignore", *left], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == left
