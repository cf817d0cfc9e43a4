"""What decides whether a program is built again."""

import shutil
from pathlib import Path

import pytest

from devcluster import binaries, pins
from devcluster.cluster import UpRequest
from devcluster.errors import DevclusterError

SOURCES = [("go.mod", b"module m\n"), ("go.sum", b"sums\n")]
FLAGS = ("-trimpath", "-s -w")


def test_key_is_sixteen_hexadecimal_digits() -> None:
    key = binaries.cache_key(SOURCES, FLAGS)
    assert len(key) == 16
    assert int(key, 16) >= 0


def test_key_does_not_depend_on_the_order_of_files() -> None:
    assert binaries.cache_key(SOURCES[::-1], FLAGS) == binaries.cache_key(SOURCES, FLAGS)


@pytest.mark.parametrize(
    ("sources", "flags"),
    [
        ([("go.mod", b"module n\n"), SOURCES[1]], FLAGS),
        ([SOURCES[0]], FLAGS),
        ([*SOURCES, ("main.go", b"")], FLAGS),
        ([("go.mod", b"module m\nsums\n"), ("go.sum", b"")], FLAGS),
        ([("go.sum", SOURCES[0][1]), ("go.mod", SOURCES[1][1])], FLAGS),
        (SOURCES, ("-trimpath",)),
        (SOURCES, ("-trimpath -s -w",)),
        (SOURCES, FLAGS[::-1]),
    ],
)
def test_key_depends_on_everything_else(
    sources: list[tuple[str, bytes]], flags: tuple[str, ...]
) -> None:
    assert binaries.cache_key(sources, flags) != binaries.cache_key(SOURCES, FLAGS)


def test_a_new_pin_moves_only_its_own_module(tmp_path: Path) -> None:
    shutil.copytree(pins.GO_ROOT, tmp_path, dirs_exist_ok=True)
    before = {name: binaries.program(name, tmp_path).key for name in binaries.TIERS["node"]}
    with (tmp_path / "etcd" / "go.sum").open("a") as sums:
        sums.write("\n")
    moved = {name for name, key in before.items() if binaries.program(name, tmp_path).key != key}
    assert moved == {"etcd"}


def test_every_program_of_every_tier_is_pinned() -> None:
    for tier, names in binaries.TIERS.items():
        for name in names:
            found = binaries.program(name)
            folder = pins.GO_ROOT / found.module
            assert (folder / "go.mod").is_file(), (tier, name)


def test_cached_programs_are_not_built_again(tmp_path: Path) -> None:
    path = binaries.program("etcd").path(tmp_path)
    path.parent.mkdir(parents=True)
    path.touch()
    lines: list[str] = []
    assert binaries.build(["etcd"], tmp_path, lines.append) == {"etcd": path}
    assert lines == []


def test_unknown_program_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(DevclusterError, match=r"'etcdd' is unknown: choose one of .*etcd, helm"):
        binaries.build(["etcdd"], tmp_path, print)


CONTROL = ("etcd", "kube-apiserver", "kubectl")
CONTROLLERS = ("kube-controller-manager", "kube-scheduler")
NODE = (
    *("kubelet", "kube-proxy", "containerd", "containerd-shim-runc-v2", "ctr"),
    *("coredns", "kube-router", "pause"),
)


@pytest.mark.parametrize(
    ("request_", "programs"),
    [
        (UpRequest("a", "api"), CONTROL),
        (UpRequest("a", "api", controllers=True), (*CONTROL, *CONTROLLERS)),
        (UpRequest("a", "api", kwok=True), (*CONTROL, *CONTROLLERS, "kwok")),
        (UpRequest("a", "node"), (*CONTROL, *CONTROLLERS, *NODE)),
        (UpRequest("a", "node", kwok=True), (*CONTROL, *CONTROLLERS, "kwok", *NODE)),
    ],
)
def test_a_run_needs_no_more_programs_than_it_starts(
    request_: UpRequest, programs: tuple[str, ...]
) -> None:
    assert request_.programs == programs
