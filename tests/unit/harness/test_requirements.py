"""What images install is pinned, hashed, the same as in development, and all that is needed."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PIN = re.compile(r"^([a-z0-9._-]+)==(\S+)", re.MULTILINE)


def pins(path: str) -> dict[str, str]:
    return dict(PIN.findall((ROOT / path).read_text()))


def needs(package: str, *extras: str) -> set[str]:
    project = tomllib.loads((ROOT / package / "pyproject.toml").read_text())["project"]
    wanted = list(project["dependencies"])
    for extra in extras:
        wanted += project["optional-dependencies"][extra]
    return {re.split(r"[\[<>=!~; ]", name)[0].lower() for name in wanted} - {"enginecore-client"}


IMAGES = {
    "operator/requirements.txt": needs("operator") | needs("client", "coordinator"),
    "engine-image/requirements.txt": needs("engine-image", "checkpoints") | needs("client"),
}


@pytest.mark.parametrize("path", IMAGES)
def test_every_need_is_pinned_as_in_development(path: str) -> None:
    pinned, development = pins(path), pins("constraints.txt")
    assert IMAGES[path] | {"setuptools"} <= pinned.keys()
    assert pinned.items() <= development.items()


@pytest.mark.parametrize("path", [*IMAGES, "constraints.txt"])
def test_every_pin_has_hashes_and_no_index_is_named(path: str) -> None:
    text = (ROOT / path).read_text()
    for entry in re.split(r"\n(?=\S)", text.strip()):
        assert "--hash=sha256:" in entry, entry.splitlines()[0]
    assert "://" not in text
    assert "index" not in text


@pytest.mark.parametrize("path", IMAGES)
def test_torch_is_left_to_the_base_image(path: str) -> None:
    heavy = {name for name in pins(path) if name in ("torch", "numpy") or "nvidia" in name}
    assert heavy == set()
