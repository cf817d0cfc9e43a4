"""Image builds: keys, and pip's settings that hold in a build but not in the image."""

import configparser
import dataclasses
from pathlib import Path

import pytest

from devcluster import images, imagestore
from devcluster.errors import DevclusterError


@pytest.mark.parametrize("change", [{"suite": "sid"}, {"packages": ("python3",)}])
def test_key_depends_on_the_recipe(change: dict[str, object]) -> None:
    base = images.BASES["python"]
    assert dataclasses.replace(base, **change).key != base.key  # type: ignore[arg-type]


def test_key_does_not_depend_on_the_order_of_packages() -> None:
    base = images.BASES["torch"]
    assert dataclasses.replace(base, packages=base.packages[::-1]).key == base.key


def test_bases_have_different_names() -> None:
    assert len({images.base_reference(name) for name in images.BASES}) == len(images.BASES)


def test_unknown_base_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(DevclusterError, match="'slim' is unknown: choose one of python, torch"):
        images.build_base("slim", tmp_path, print)


@pytest.mark.parametrize(
    ("environ", "options"),
    [
        ({}, {}),
        ({"PIP_INDEX_URL": "https://i/simple"}, {"index-url": "https://i/simple"}),
        (
            {"PIP_FIND_LINKS": "/a /b", "PIP_DEFAULT_TIMEOUT": "9"},
            {"find-links": "/a /b", "default-timeout": "9"},
        ),
        ({"PIP_TARGET": "/x", "PIP_NO_DEPS": "1"}, {}),
    ],
)
def test_pip_config(environ: dict[str, str], options: dict[str, str]) -> None:
    parser = configparser.RawConfigParser()
    parser.read_string(images.pip_config(environ))
    found = dict(parser["global"])
    assert found.pop("cert") == "/etc/ssl/certs/ca-certificates.crt"
    assert found.pop("disable-pip-version-check") == "true"
    assert found == options


def test_mounts_are_read_only_and_of_what_exists(tmp_path: Path) -> None:
    authorities = tmp_path / "own-ca.pem"
    authorities.touch()
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    environ = {
        "PIP_CERT": str(authorities),
        "PIP_FIND_LINKS": f"{wheels} {tmp_path}/gone https://links",
    }
    assert images.build_mounts(environ, tmp_path) == [
        f"{tmp_path}/pip.conf:/etc/pip.conf:ro",
        f"{authorities}:/etc/ssl/certs/ca-certificates.crt:ro",
        f"{wheels}:{wheels}:ro",
    ]


def test_archive_names_are_file_names() -> None:
    path = imagestore.ImageStore(Path("/c")).archive("docker.io/enginecore/operator:1", "abc")
    assert path == Path("/c/docker.io_enginecore_operator_1-abc.oci.tar")
