"""The list of keys that may connect: read, and read again."""

from pathlib import Path

import pytest

from enginecore_curve.allowed import AllowedKeys
from enginecore_curve.keys import KeyFileError, KeyPair, new_key_pair, read_key_pair
from enginecore_wire.public_keys import is_key
from support.keys import MountedKeys, write_secret

ROLES = ("infer", "admin")


class Clock:
    """Stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def settled(allowed: AllowedKeys, clock: Clock) -> bool:
    """Look twice, as far apart as whoever follows a list does; return whether it changed."""
    changed = allowed.follow()
    clock.now += 0.1
    return allowed.follow() or changed


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


def test_a_swapped_link_is_followed(tmp_path: Path, pairs: list[KeyPair], clock: Clock) -> None:
    a, b, _ = pairs
    mounted = MountedKeys(tmp_path / "keys", infer=[a])
    allowed = AllowedKeys(mounted.directory, ROLES, clock)
    mounted.write(infer=[b])
    assert allowed.follow()
    assert (allowed.role_of(a.public), allowed.role_of(b.public)) == ("infer", "infer")
    assert not allowed.follow(), "no time has passed: it may be half written"
    clock.now += 0.1
    assert allowed.follow()
    assert (allowed.role_of(a.public), allowed.role_of(b.public)) == (None, "infer")
    mounted.write(infer=[b])
    assert not settled(allowed, clock), "other files, the same list"


@pytest.mark.parametrize("gap", ["empty", "missing"])
@pytest.mark.parametrize("role", ROLES)
def test_a_file_that_is_rewritten_in_place_takes_nobody_away(
    tmp_path: Path, pairs: list[KeyPair], clock: Clock, gap: str, role: str
) -> None:
    a, b, _ = pairs
    texts = {"infer": f"{a.public}\n{b.public}\n", "admin": f"{b.public}\n"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    allowed = AllowedKeys(tmp_path, ROLES, clock)
    if gap == "missing":
        (tmp_path / role).unlink()
    else:
        (tmp_path / role).write_text("")
    assert not allowed.follow()
    clock.now += 0.1
    (tmp_path / role).write_text(texts[role])
    assert not settled(allowed, clock)
    assert (allowed.role_of(a.public), allowed.role_of(b.public)) == ("infer", "admin")


def test_a_higher_role_counts_at_once_and_a_lower_one_a_look_later(
    tmp_path: Path, pairs: list[KeyPair], clock: Clock
) -> None:
    a, b, _ = pairs
    mounted = MountedKeys(tmp_path / "keys", infer=[a], admin=[b])
    allowed = AllowedKeys(mounted.directory, ROLES, clock)
    mounted.write(infer=[b], admin=[a])
    assert allowed.follow()
    assert (allowed.role_of(a.public), allowed.role_of(b.public)) == ("admin", "admin")
    clock.now += 0.1
    assert allowed.follow()
    assert (allowed.role_of(a.public), allowed.role_of(b.public)) == ("admin", "infer")


def test_what_was_taken_away_before_a_list_went_wrong_stays(
    tmp_path: Path, pairs: list[KeyPair], clock: Clock
) -> None:
    a, b, _ = pairs
    mounted = MountedKeys(tmp_path / "keys", infer=[a, b])
    allowed = AllowedKeys(mounted.directory, ROLES, clock)
    mounted.write(infer=[a])
    assert not allowed.follow()
    mounted.write_text(infer="no key")
    assert not settled(allowed, clock)
    assert allowed.role_of(b.public) == "infer"


def test_a_list_that_is_wrong_later_changes_nothing(
    tmp_path: Path, pairs: list[KeyPair], clock: Clock
) -> None:
    a, b, _ = pairs
    mounted = MountedKeys(tmp_path / "keys", infer=[a])
    allowed = AllowedKeys(mounted.directory, ROLES, clock)
    mounted.write_text(infer=f"{b.public}\n\n{b.public}x\n")
    assert not allowed.follow()
    assert "line 3: expected a public key, 40 characters of Z85" in allowed.problem
    assert allowed.role_of(a.public) == "infer"
    assert allowed.role_of(b.public) is None
    mounted.write_text()
    assert not allowed.follow()
    assert "has no file infer or admin" in allowed.problem
    mounted.write(admin=[b])
    assert settled(allowed, clock)
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
