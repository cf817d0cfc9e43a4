"""The images as they are built: small, for a numbered user, and with CUDA as far as that goes."""

from collections.abc import Callable
from pathlib import Path

import pytest

from devcluster import images
from devcluster.errors import DevclusterError
from devcluster.locations import Locations
from enginecore_operator.plan.rendering import USER_ID
from support.image_contents import ImageContents
from support.images import ENGINE, IMAGES, SERVER, build_images, take_snapshot

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

MEGABYTE = 1_000_000
OPERATOR_OWN_MEGABYTES = 60
OPERATOR_MEGABYTES = 180
CUDA_BASE = "localhost/enginecore/base-cuda-stand-in:test"
CUDA_ENGINE = "localhost/enginecore/engine-cuda:test"
CUDA_VERSION = "12.8"
# Debian's torch that says it was built for CUDA: all of a CUDA base but its gigabytes.
STAND_IN = f"""
ARG BASE_IMAGE
FROM ${{BASE_IMAGE}}
RUN cd /usr/lib/python3/dist-packages/torch \\
 && sed -i -E 's/^cuda( *:.*)? *=.*/cuda = "{CUDA_VERSION}"/' version.py
"""
LOOK = f"""
ARG BASE_IMAGE
FROM ${{BASE_IMAGE}}
RUN python -c 'import torch; assert torch.version.cuda == "{CUDA_VERSION}", torch.version.cuda' \\
 && python -c 'import torch; assert torch.__file__.startswith("/usr/"), torch.__file__' \\
 && python -c 'import enginecore_torch.loader' \\
 && test "$(id -u)" = {USER_ID}
"""

Contents = Callable[[str], ImageContents]


@pytest.fixture(scope="module")
def contents(devcluster_locations: Locations) -> Contents:
    """Return a function that reads an image by its name."""
    built = build_images(IMAGES, devcluster_locations.images, print)
    return lambda name: ImageContents(built[name].archive)


def test_the_operators_image_is_slim(
    contents: Contents, record_property: Callable[[str, object], None]
) -> None:
    image = contents("operator")
    own, whole = image.own_size / MEGABYTE, image.size / MEGABYTE
    record_property("megabytes", f"{own:.0f} above the base, {whole:.0f} with it")
    assert own <= OPERATOR_OWN_MEGABYTES
    assert whole <= OPERATOR_MEGABYTES
    for part in ("/torch/", "/numpy/", "bin/gcc", "opt/enginecore/bin/pip", "/setuptools/"):
        assert image.find(part) == [], part


@pytest.mark.parametrize("name", IMAGES)
def test_images_run_as_a_numbered_user(contents: Contents, name: str) -> None:
    config = contents(name).config
    assert config["User"] == f"{USER_ID}:{USER_ID}"
    if name != SERVER.name:
        assert config["Entrypoint"][0].startswith("enginecore-")


def test_the_servers_image_is_its_base_and_one_file(contents: Contents) -> None:
    own = {path for layer in contents(SERVER.name).layers[1:] for path in layer}
    assert {path.lstrip("./") for path in own} == {"enginecore-server.pyz"}


@pytest.fixture
def build(tmp_path: Path, devcluster_locations: Locations) -> Callable[..., None]:
    """Return a function that builds the engine's Dockerfile, or a text, on a base."""
    take_snapshot(ENGINE).write(tmp_path)

    def run(tag: str, text: str = "", target: str = "", **arguments: str) -> None:
        dockerfile = tmp_path / ENGINE.dockerfile
        if text:
            dockerfile = tmp_path / "Dockerfile"
            dockerfile.write_text(text)
        images.try_build(
            images.ImageBuild(dockerfile, tmp_path, tag, ENGINE.base, arguments, target),
            devcluster_locations.images,
            print,
        )

    return run


def test_a_cuda_build_refuses_a_base_without_cuda(build: Callable[..., None]) -> None:
    with pytest.raises(DevclusterError, match="has no CUDA: pass BASE_IMAGE with a CUDA torch"):
        build(CUDA_ENGINE, ACCELERATOR="cuda")


@pytest.mark.counted(short=0, full=1)
def test_a_cuda_build_takes_a_base_with_cuda_and_adds_no_torch(
    build: Callable[..., None], counted: float
) -> None:
    """Up to the last step in `make soak`; what comes after the check is the CPU image's build."""
    build(CUDA_BASE, STAND_IN)
    build(
        CUDA_ENGINE, target="" if counted else "checked", BASE_IMAGE=CUDA_BASE, ACCELERATOR="cuda"
    )
    if counted:
        build("localhost/enginecore/engine-cuda-look:test", LOOK, BASE_IMAGE=CUDA_ENGINE)
