"""Pins: the Go programs of the dev cluster and the module files that fix their versions.

Every directory under ``go/`` is one Go module whose ``tool`` lines name the
programs to build from it.  ``python -m devcluster pin`` writes those files
again after a version in `MODULES` changed; a build only ever reads them.
"""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

GO_ROOT = Path(__file__).with_name("go")
GO_VERSION = "1.26"


@dataclass(frozen=True)
class GoModule:
    """One module file: a released module and the commands built from it.

    Attributes:
        path: import path of the released module.
        version: its tag.
        programs: file name of the binary → import path of its command.
        ldflags: linker flags that stamp the version into the binaries.
        staging: True where the module's own go.mod replaces some of its
            requirements by local directories that no proxy serves.
        local: True where the source lies in the module's own directory.
    """

    path: str
    version: str
    programs: dict[str, str]
    ldflags: tuple[str, ...] = ()
    staging: bool = False
    local: bool = False


def _kubernetes_version(package: str, version: str) -> tuple[str, ...]:
    major, minor, _ = version.removeprefix("v").split(".")
    return (
        f"-X {package}.gitVersion={version}",
        f"-X {package}.gitMajor={major}",
        f"-X {package}.gitMinor={minor}",
    )


KUBERNETES_VERSION = "v1.36.3"

MODULES: dict[str, GoModule] = {
    "etcd": GoModule(
        path="go.etcd.io/etcd/server/v3",
        version="v3.6.5",
        programs={"etcd": "go.etcd.io/etcd/server/v3"},
    ),
    "kubernetes": GoModule(
        path="k8s.io/kubernetes",
        version=KUBERNETES_VERSION,
        programs={
            name: f"k8s.io/kubernetes/cmd/{name}"
            for name in (
                "kube-apiserver",
                "kubectl",
                "kube-controller-manager",
                "kube-scheduler",
                "kubelet",
                "kube-proxy",
            )
        },
        ldflags=_kubernetes_version("k8s.io/component-base/version", KUBERNETES_VERSION),
        staging=True,
    ),
    "kwok": GoModule(
        path="sigs.k8s.io/kwok",
        version="v0.8.0",
        programs={"kwok": "sigs.k8s.io/kwok/cmd/kwok"},
    ),
    "containerd": GoModule(
        path="github.com/containerd/containerd/v2",
        version="v2.4.2",
        programs={
            name: f"github.com/containerd/containerd/v2/cmd/{name}"
            for name in ("containerd", "containerd-shim-runc-v2", "ctr")
        },
        ldflags=("-X github.com/containerd/containerd/v2/version.Version=v2.4.2",),
    ),
    "coredns": GoModule(
        path="github.com/coredns/coredns",
        version="v1.15.0",
        programs={"coredns": "github.com/coredns/coredns"},
    ),
    "kube-router": GoModule(
        path="github.com/cloudnativelabs/kube-router/v2",
        version="v2.1.0",
        programs={"kube-router": "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router"},
        ldflags=("-X github.com/cloudnativelabs/kube-router/v2/pkg/version.Version=v2.1.0",),
    ),
    "helm": GoModule(
        path="helm.sh/helm/v4",
        version="v4.3.1",
        programs={"helm": "helm.sh/helm/v4/cmd/helm"},
        ldflags=("-X helm.sh/helm/v4/internal/version.version=v4.3.1",),
    ),
    "kubeconform": GoModule(
        path="github.com/yannh/kubeconform",
        version="v0.7.0",
        programs={"kubeconform": "github.com/yannh/kubeconform/cmd/kubeconform"},
    ),
    "pause": GoModule(
        path="enginecore.dev/devcluster/pause",
        version="v1",
        programs={"pause": "enginecore.dev/devcluster/pause"},
        local=True,
    ),
}


def module_header(name: str, replacements: dict[str, str]) -> str:
    """Returns a go.mod that has no requirement yet.

    Args:
        name: directory of the module under ``go/``.
        replacements: module path → version that takes its place.
    """
    lines = [f"module enginecore.dev/devcluster/{name}", "", f"go {GO_VERSION}"]
    if replacements:
        lines += ["", "replace ("]
        lines += [f"\t{path} => {path} {version}" for path, version in sorted(replacements.items())]
        lines += [")"]
    return "\n".join(lines) + "\n"


def staging_replacements(go_mod: str, version: str) -> dict[str, str]:
    """Finds the staging modules of Kubernetes in its own go.mod.

    Kubernetes replaces them by directories of its source tree; outside that
    tree the released module of the same minor and patch stands for each
    (v1.36.3 is published as v0.36.3).
    """
    _, minor, patch = version.removeprefix("v").split(".")
    paths = re.findall(r"^\s*(?:replace\s+)?(\S+)\s+=>\s+\./staging/\S+", go_mod, re.MULTILINE)
    return dict.fromkeys(paths, f"v0.{minor}.{patch}")


def pin(name: str) -> None:
    """Writes go.mod and go.sum of one module anew.

    Raises:
        subprocess.CalledProcessError: the go command could not resolve it.
    """
    module = MODULES[name]
    if module.local:
        return
    directory = GO_ROOT / name
    directory.mkdir(parents=True, exist_ok=True)
    replacements: dict[str, str] = {}
    if module.staging:
        replacements = staging_replacements(_released_go_mod(module), module.version)
    (directory / "go.sum").unlink(missing_ok=True)
    (directory / "go.mod").write_text(module_header(name, replacements))
    for package in module.programs.values():
        subprocess.run(
            ["go", "get", "-tool", f"{package}@{module.version}"], cwd=directory, check=True
        )


def _released_go_mod(module: GoModule) -> str:
    found = subprocess.run(
        ["go", "mod", "download", "-json", f"{module.path}@{module.version}"],
        check=True,
        capture_output=True,
        text=True,
    )
    return Path(json.loads(found.stdout)["GoMod"]).read_text()
