"""Finding what a node left outside its run's directory."""

import json
from pathlib import Path

import pytest

from devcluster import teardown

MOUNTINFO = """\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
41 27 254:0 /n/kubelet /var/lib/dev/n1/kubelet rw shared:1 - ext4 /dev/vda rw
42 41 0:39 / /var/lib/dev/n1/kubelet/pods/u/volumes/token rw shared:2 - tmpfs tmpfs rw
43 27 0:40 / /var/lib/dev/n1 rw - tmpfs tmpfs rw
44 27 0:41 / /var/lib/dev/n10/kubelet rw - tmpfs tmpfs rw
45 27 0:42 / /var/lib/dev/n1/with\\040space rw - tmpfs tmpfs rw
46 27 0:43 / /state/n1/x rw - tmpfs tmpfs rw
"""


def test_mounts_below_come_innermost_first() -> None:
    roots = [Path("/var/lib/dev/n1"), Path("/state/n1")]
    assert teardown.mounts_below(MOUNTINFO, roots) == [
        Path("/var/lib/dev/n1/kubelet/pods/u/volumes/token"),
        Path("/var/lib/dev/n1/with space"),
        Path("/var/lib/dev/n1/kubelet"),
        Path("/var/lib/dev/n1"),
        Path("/state/n1/x"),
    ]


def test_a_mount_over_another_is_listed_twice() -> None:
    line = "43 27 0:40 / /n1/v rw - tmpfs tmpfs rw\n"
    assert teardown.mounts_below(line * 2, [Path("/n1")]) == [Path("/n1/v")] * 2


@pytest.fixture
def version_1(tmp_path: Path) -> Path:
    for hierarchy in ("cpu", "cpuset", "unified"):
        (tmp_path / hierarchy).mkdir()
    for setting, value in (("cpuset.cpus", "0-1\n"), ("cpuset.mems", "0\n")):
        (tmp_path / "cpuset" / setting).write_text(value)
    (tmp_path / "cpuacct").symlink_to("cpu")
    return tmp_path


def test_cgroup_of_version_1_is_made_in_every_hierarchy(version_1: Path) -> None:
    teardown.create_cgroup("dev", version_1)
    made = {folder.parent.name for folder in version_1.glob("*/dev")}
    assert made == {"cpu", "cpuset", "unified", "cpuacct"}
    assert (version_1 / "cpuset/dev/cpuset.cpus").read_text() == "0-1\n"
    assert (version_1 / "cpuset/dev/cpuset.mems").read_text() == "0\n"


def test_cgroup_of_version_2_is_made_once(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu memory\n")
    (tmp_path / "init.scope").mkdir()
    teardown.create_cgroup("dev", tmp_path)
    assert teardown.cgroup_directories("dev", tmp_path) == [tmp_path / "dev"]


def test_cgroups_come_innermost_first_and_go(tmp_path: Path) -> None:
    deep = tmp_path / "memory" / "dev" / "kubepods" / "pod1"
    deep.mkdir(parents=True)
    (tmp_path / "memory" / "other").mkdir()
    expected = [deep, deep.parent, deep.parent.parent]
    assert teardown.cgroup_directories("dev", tmp_path) == expected
    teardown.remove_cgroup("dev", tmp_path)
    assert [path.name for path in (tmp_path / "memory").iterdir()] == ["other"]


def test_shim_sockets_come_from_the_state_of_their_containers(tmp_path: Path) -> None:
    tasks = tmp_path / "state/io.containerd.runtime.v2.task/k8s.io"
    contents = {
        "a": json.dumps({"version": 3, "address": "unix:///run/containerd/s/1"}),
        "b": json.dumps({"address": "vsock://3"}),
        "c": "{",
    }
    for name, content in contents.items():
        (tasks / name).mkdir(parents=True)
        (tasks / name / "bootstrap.json").write_text(content)
    assert teardown.shim_sockets(tmp_path) == [Path("/run/containerd/s/1")]


def test_tree_is_removed(tmp_path: Path) -> None:
    (tmp_path / "run" / "deep").mkdir(parents=True)
    teardown.remove_tree(tmp_path / "run")
    teardown.remove_tree(tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
