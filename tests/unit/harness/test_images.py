"""What decides an image's tag, and what each Dockerfile must keep."""

import re
from pathlib import Path

import pytest

from enginecore_operator.plan.rendering import USER_ID
from support.images import ENGINE, IMAGES, OPERATOR, ROOT, Image, take_snapshot

IMAGE = Image("thing", "thing/Dockerfile", "python", ("thing",))


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


SOURCES = {"thing/Dockerfile": "FROM x", "thing/src/a.py": "a = 1\n", "other/b.py": "b = 1\n"}


def test_only_its_own_sources_change_a_tag(tmp_path: Path) -> None:
    root = write(tmp_path, SOURCES)
    first = take_snapshot(IMAGE, root).reference
    derived = {"thing/src/__pycache__/a.pyc": "x", "thing/src/thing.egg-info/PKG-INFO": "x"}
    write(root, {"other/b.py": "b = 2\n"} | derived)
    assert take_snapshot(IMAGE, root).reference == first
    write(root, {"thing/src/a.py": "a = 2\n"})
    assert take_snapshot(IMAGE, root).reference != first


def test_names_and_contents_are_told_apart(tmp_path: Path) -> None:
    one = write(tmp_path / "one", {"thing/ab": "c"})
    two = write(tmp_path / "two", {"thing/a": "bc"})
    assert take_snapshot(IMAGE, one).key != take_snapshot(IMAGE, two).key


def test_what_is_built_is_what_was_read(tmp_path: Path) -> None:
    root = write(tmp_path / "root", SOURCES)
    snapshot = take_snapshot(IMAGE, root)
    write(root, {"thing/src/a.py": "changed\n"})
    snapshot.write(tmp_path / "context")
    assert (tmp_path / "context/thing/src/a.py").read_text() == "a = 1\n"
    assert not (tmp_path / "context/other").exists()


@pytest.mark.parametrize("image", IMAGES.values(), ids=lambda image: image.name)
def test_images_run_as_a_numbered_user(image: Image) -> None:
    text = (ROOT / image.dockerfile).read_text()
    final = text.rpartition("\nFROM ")[2]
    (user,) = re.findall(r"^USER (\d+):(\d+)$", final, re.MULTILINE)
    assert user == (str(USER_ID), str(USER_ID))


@pytest.mark.parametrize("image", [OPERATOR, ENGINE], ids=lambda image: image.name)
def test_images_start_their_program(image: Image) -> None:
    final = (ROOT / image.dockerfile).read_text().rpartition("\nFROM ")[2]
    assert re.search(r'^ENTRYPOINT \["enginecore-[a-z]+"\]$', final, re.MULTILINE)


@pytest.mark.parametrize("image", IMAGES.values(), ids=lambda image: image.name)
def test_dockerfiles_know_no_machine(image: Image) -> None:
    text = (ROOT / image.dockerfile).read_text()
    assert not re.search(r"https?://|/etc/ssl|--index-url|--trusted-host|^ARG .*PROXY", text)
    for options in re.findall(r"pip install ([^\n&]+)", text):
        assert "--require-hashes" in options or "--no-deps --no-build-isolation" in options
