"""Locks: one holder, and a removed file does not let two in."""

from pathlib import Path

from devcluster.locks import file_lock, free_lock


def test_held_lock_is_not_free(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "lock"
    with file_lock(path, "it", print), free_lock(path) as ours:
        assert not ours
    with free_lock(path) as ours:
        assert ours


def test_removed_lock_file_is_locked_anew(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with file_lock(path, "it", print):
        path.unlink()
        with free_lock(path) as ours:
            assert ours


def test_lock_of_a_file_removed_meanwhile_is_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lines: list[str] = []
    with file_lock(path, "it", lines.append):
        path.unlink()
    with file_lock(path, "it", lines.append):
        assert path.exists()
    assert lines == []
