"""Module files: replacements come from Kubernetes' own go.mod."""

import pytest

from devcluster import pins

GO_MOD = """\
module k8s.io/kubernetes

require (
	k8s.io/api v0.0.0
	k8s.io/klog/v2 v2.130.1
)

replace (
	k8s.io/api => ./staging/src/k8s.io/api
	k8s.io/client-go => ./staging/src/k8s.io/client-go
	example.org/fork => example.org/own v1.2.3
)

replace k8s.io/alone => ./staging/src/k8s.io/alone
"""
REPLACEMENTS = "replace (\n\tk8s.io/a => k8s.io/a v1\n\tk8s.io/b => k8s.io/b v2\n)\n"


def test_staging_modules_become_their_releases() -> None:
    assert pins.staging_replacements(GO_MOD, "v1.36.3") == {
        "k8s.io/api": "v0.36.3",
        "k8s.io/client-go": "v0.36.3",
        "k8s.io/alone": "v0.36.3",
    }


@pytest.mark.parametrize(
    ("replacements", "text"),
    [
        ({}, "module enginecore.dev/devcluster/etcd\n\ngo 1.26\n"),
        (
            {"k8s.io/b": "v2", "k8s.io/a": "v1"},
            "module enginecore.dev/devcluster/etcd\n\ngo 1.26\n\n" + REPLACEMENTS,
        ),
    ],
)
def test_header(replacements: dict[str, str], text: str) -> None:
    assert pins.module_header("etcd", replacements) == text


@pytest.mark.parametrize(
    "name", [name for name, module in pins.MODULES.items() if not module.local]
)
def test_module_file_names_the_version_and_every_program(name: str) -> None:
    module = pins.MODULES[name]
    text = (pins.GO_ROOT / name / "go.mod").read_text()
    assert f"{module.path} {module.version}" in text
    for package in module.programs.values():
        assert package in text.split()


def test_kubernetes_says_its_version() -> None:
    assert pins.MODULES["kubernetes"].ldflags[0].endswith(".gitVersion=v1.36.3")
