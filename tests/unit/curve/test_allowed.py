"""The list of keys that may connect: read, and read again."""

from pathlib import Path

import pytest

from enginecore_curve.allowed import AllowedKeys
from enginecore_curve.keys import KeyFileError, KeyPair, new_key_pair, read_key_pair
from enginecore_wire.public_keys import is_key
from support.keys import MountedKeys, write_secret

ROLES = ("infer", "admin")


@pytest.fixture
def pairs() -> list[KeyPair]:
    return [new_key_pair() for _ in range(3)]


def test_each_key_has_the_role_of_its_file(tmp_path: Path, pairs: list[KeyPair]) -> None:
    a, b, c = pairs
    mounted = MountedKeys(tmp_path / "keys", infer=[a, b], admin=[b])
    allowed = AllowedKeys(mounted.directory, ROLES)
    assert [allowed.role_of(pair.public) for pair in (a, b, c)] == ["infer", "admin", None]
    assert len(allowed) == 2
    assert not allowed.follow()


def test_a_swapped_link_is_followed(tmp_path: Path, pairs: list[KeyPair]) -> None:
    a, b, _ = pairs
    mounted = MountedKeys(tmp_path / "keys", infer=[a])
    allowed = AllowedKeys(mounted.directory, ROLES)
    mounted.write(infer=[b])
    assert allowed.follow()
    assert (allowed.role_of(a.public), allowed.role_of(b.public)) == (None, "infer")
    mounted.write(infer=[b])
    assert not allowed.follow(), "other files, the same list"


def test_a_list_that_is_wrong_later_changes_nothing(tmp_path: Path, pairs: list[KeyPair]) -> None:
    a, b, _ = pairs
    mounted = MountedKeys(tmp_path / "keys", infer=[a])
    allowed = AllowedKeys(mounted.directory, ROLES)
    mounted.write_text(infer=f"{b.public}\n\n{b.public}x\n")
    assert not allowed.follow()
    assert "line 3: expected a public key, 40 characters of Z85" in allowed.problem
    assert allowed.role_of(a.public) == "infer"
    assert allowed.role_of(b.public) is None
    mounted.write_text()
    assert not allowed.follow()
    assert "has no file infer or admin" in allowed.problem
    mounted.write(admin=[b])
    assert allowed.follow()
    assert allowed.problem == ""
    assert allowed.role_of(a.public) is None


def test_an_empty_file_is_a_list_of_nobody(tmp_path: Path) -> None:
    mounted = MountedKeys(tmp_path / "keys", infer=[])
    assert len(AllowedKeys(mounted.directory, ROLES)) == 0


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        ({}, "has no file infer or admin with public keys"),
        ({"infer": "short"}, "infer, line 1"),
        ({"admin": "x" * (2 << 20)}, "is longer than"),
    ],
)
def test_a_list_that_is_wrong_at_first_is_an_error(
    tmp_path: Path, texts: dict[str, str], problem: str
) -> None:
    mounted = MountedKeys(tmp_path / "keys")
    mounted.write_text(**texts)
    with pytest.raises(KeyFileError, match=problem):
        AllowedKeys(mounted.directory, ROLES)


def test_a_secret_key_gives_the_public_one_and_is_not_shown(tmp_path: Path) -> None:
    pair = new_key_pair()
    assert read_key_pair(write_secret(pair, tmp_path / "secret")) == pair
    assert pair.secret not in repr(pair)
    assert pair.secret not in f"{pair}"


@pytest.mark.parametrize("text", ["", "x" * 39, "x" * 41, "~" * 40, "#" * 40, "\xff" * 40])
def test_what_is_no_key_is_told_from_one(tmp_path: Path, text: str) -> None:
    assert not is_key(text)
    (tmp_path / "secret").write_text(text)
    with pytest.raises(KeyFileError, match="holds no secret key"):
        read_key_pair(tmp_path / "secret")
