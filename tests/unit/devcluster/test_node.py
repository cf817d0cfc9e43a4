"""What the node's own programs say is read as they write it."""

from pathlib import Path
from typing import Any

import pytest

from devcluster import node
from devcluster.errors import DevclusterError
from devcluster.locations import RunDirectory

READY = {"type": "Ready", "status": "True"}
IMAGES = """\
REF                     TYPE                                       DIGEST     SIZE    PLATFORMS   LABELS
docker.io/a/b:1         application/vnd.oci.image.manifest.v1+json sha256:aa  1.2 MiB linux/amd64 io.x=managed
localhost/pause:1       application/vnd.oci.image.manifest.v1+json sha256:bb  1.2 MiB linux/amd64 io.x=managed

"""  # noqa: E501


@pytest.mark.parametrize(
    ("conditions", "taints", "ready"),
    [
        ([READY], [], True),
        ([{"type": "DiskPressure", "status": "False"}, READY], [], True),
        ([READY], [{"key": "node.kubernetes.io/not-ready"}], False),
        ([{"type": "Ready", "status": "Unknown"}], [], False),
        ([{"type": "DiskPressure", "status": "True"}], [], False),
        ([], [], False),
    ],
)
def test_ready_node(conditions: list[Any], taints: list[Any], ready: bool) -> None:
    tree = {"spec": {"taints": taints}, "status": {"conditions": conditions}}
    assert node.node_is_ready(tree) is ready


@pytest.mark.parametrize(
    ("status", "count"),
    [
        ({}, 0),
        ({"allocatable": {"cpu": "2"}}, 0),
        ({"allocatable": {"nvidia.com/gpu": "8"}}, 8),
        ({"capacity": {"nvidia.com/gpu": "8"}}, 0),
    ],
)
def test_allocatable_gpus(status: dict[str, Any], count: int) -> None:
    assert node.allocatable_gpus({"status": status}) == count


def test_image_table() -> None:
    expected = {"docker.io/a/b:1": "sha256:aa", "localhost/pause:1": "sha256:bb"}
    assert node.listed_digests(IMAGES) == expected
    assert node.listed_digests("") == {}


@pytest.mark.parametrize("content", [None, b"no tar file"], ids=["missing", "damaged"])
def test_archive_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    archive = tmp_path / "image.tar"
    if content is not None:
        archive.write_bytes(content)
    with pytest.raises(DevclusterError, match=f"image archive {archive} cannot be read"):
        node.load_image(RunDirectory(tmp_path), {}, archive)
