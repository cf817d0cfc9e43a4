"""What is generated around the chart is up to date, and read from values.yaml as meant."""

import importlib.util
import subprocess
import sys
import tarfile
from pathlib import Path
from types import ModuleType

import pytest

from support.helm import ROOT, Helm

pytestmark = pytest.mark.chart


def load_generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("chart_generate", ROOT / "charts/generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


generate = load_generator()

VALUES = """\
# A remark.

# -- The first
# goes on here.
first: 1
second:
  # -- Inner.
  inner: {a: b}
  plain: 2
third:
  # -- Another.
  inner: []
"""


def test_comments_become_descriptions() -> None:
    assert generate.documented_values(VALUES) == [
        generate.Value("first", 1, "The first goes on here."),
        generate.Value("second.inner", {"a": "b"}, "Inner."),
        generate.Value("third.inner", [], "Another."),
    ]


def test_a_value_that_the_schema_lacks_is_an_error() -> None:
    with pytest.raises(KeyError, match="third"):
        generate.described_schema(
            {"properties": {"first": {}, "second": {"properties": {"inner": {}}}}},
            generate.documented_values(VALUES),
        )


def test_a_readme_without_marks_is_an_error() -> None:
    with pytest.raises(ValueError, match="make generate"):
        generate.with_table("# Title\n", "table")


def test_nothing_is_stale(helm: Helm) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "charts/generate.py"), "--check"],
        env={"HELM": str(helm.program), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_stale_file_is_named(helm: Helm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stale = tmp_path / "stale.yaml"
    stale.write_text("old\n")
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    assert generate.settle(stale, "new\n", check=True) is False
    assert stale.read_text() == "old\n"
    assert generate.settle(stale, "new\n", check=False) is True
    assert stale.read_text() == "new\n"


def test_a_package_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "PACKAGES", tmp_path / "charts")
    package = generate.write_package()
    with tarfile.open(package) as archive:
        assert "enginecore/Chart.yaml" in archive.getnames()
    before = package.read_bytes()
    with pytest.raises(SystemExit, match="released already"):
        generate.write_package()
    assert package.read_bytes() == before
